"""Total variation: neighbouring pixels are alike."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.priors.base import Prior, PriorTerm
from fedsim.errors import NotApplicable, one_of
from fedsim.observation import Observation

KINDS = ("anisotropic", "isotropic", "squared")

SMOOTHING = 1e-12
"""Under the root of the isotropic form, whose derivative at a flat spot would else be infinite."""


class TotalVariation(Prior):
    """The mean jump between neighbouring pixels, of model-normalised pictures.

    Args:
        kind, double_opponents: see `total_variation`.
    """

    def __init__(
        self,
        weight: float | int,
        kind: str = "anisotropic",
        double_opponents: bool = False,
        start: float | int = 0.0,
        end: float | int = 1.0,
    ) -> None:
        super().__init__(weight, start, end)
        one_of("prior.kind", kind, KINDS)
        self.kind = kind
        self.double_opponents = double_opponents

    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        """Raises NotApplicable where pictures lack three channels for colour opponents, or have one row or column."""
        if self.double_opponents and observation.image_shape[0] != 3:
            raise NotApplicable(f"double opponents need 3 colour channels, not {observation.image_shape[0]}")
        if min(observation.image_shape[1:]) == 1:
            raise NotApplicable("total variation needs pictures of several rows and columns")
        return lambda images: total_variation(images, self.kind, self.double_opponents)


def total_variation(
    images: Float[Tensor, "batch channels height width"], kind: str = "anisotropic", double_opponents: bool = False
) -> Float[Tensor, ""]:
    """With d_x and d_y the differences to the right and to the lower neighbour, and means over all of them:

    - `anisotropic`: mean |d_x| + mean |d_y| (Geiping et al. 2020, Inverting Gradients);
    - `isotropic`: mean √(d_x² + d_y²) over the pixels that have both neighbours, each channel for itself;
    - `squared`: mean d_x² + mean d_y².

    With `double_opponents` the mean runs over six planes, the channels and their differences R-G, R-B, G-B
    (Åström and Schnörr 2016; Geiping's later framework): an edge in colour then costs more than one in grey.
    """
    if double_opponents:
        red, green, blue = images.unbind(dim=1)
        opponents = torch.stack([red - green, red - blue, green - blue], dim=1)
        images = torch.cat([images, opponents], dim=1)
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    if kind == "anisotropic":
        return across.abs().mean() + down.abs().mean()
    if kind == "squared":
        return across.square().mean() + down.square().mean()
    return (across[..., :-1, :].square() + down[..., :, :-1].square() + SMOOTHING).sqrt().mean()
