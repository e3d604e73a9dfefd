"""No seams where the patches of a ViT meet."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.priors.base import TINY, Prior, PriorTerm
from fedsim.errors import NotApplicable, require
from fedsim.observation import Observation


class PatchSeam(Prior):
    """The jump of the pixels across patch borders (Hatamizadeh et al. 2022, GradViT, R_patch).

    Args:
        patch: side of a patch in pixels; None takes the observed model's.
    """

    def __init__(
        self, weight: float | int, patch: int | None = None, start: float | int = 0.0, end: float | int = 1.0
    ) -> None:
        super().__init__(weight, start, end)
        require("prior.patch", patch, patch is None or patch >= 1, "a positive number of pixels")
        self.patch = patch

    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        """Raises NotApplicable for a model without patches, and patches that leave no border inside the picture."""
        patch = observation.roles.patch if self.patch is None else (self.patch, self.patch)
        if patch is None:
            raise NotApplicable(f"{observation.architecture.spec.name} has no patches: give their size")
        height, width = observation.image_shape[1:]
        if height % patch[0] or width % patch[1]:
            raise NotApplicable(f"patches of {patch[0]}x{patch[1]} px do not tile pictures of {height}x{width} px")
        if patch == (height, width):
            raise NotApplicable("a picture of one patch has no seams")
        return lambda images: patch_seam(images, patch)


def patch_seam(images: Float[Tensor, "batch channels height width"], patch: tuple[int, int]) -> Float[Tensor, ""]:
    """Σ_k ‖x[P·k, :] - x[P·k - 1, :]‖₂ over the borders k between rows of patches, and the same for columns.

    Each norm is over one whole border, its pixels and channels; the mean over pictures.
    """
    rows, columns = patch
    down = images[:, :, rows::rows, :] - images[:, :, rows - 1 : -1 : rows, :]
    across = images[:, :, :, columns::columns] - images[:, :, :, columns - 1 : -1 : columns]
    down_norms = (down.square().sum(dim=(1, 3)) + TINY).sqrt()
    across_norms = (across.square().sum(dim=(1, 2)) + TINY).sqrt()
    return (down_norms.sum(dim=1) + across_norms.sum(dim=1)).mean()
