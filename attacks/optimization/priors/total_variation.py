"""Total variation: neighbouring pixels are alike."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.priors.base import Prior, PriorTerm
from fedsim.errors import NotApplicable
from fedsim.observation import Observation


class TotalVariation(Prior):
    """The mean jump between neighbouring pixels, of model-normalised pictures."""

    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        """Raises NotApplicable where pictures have one row or column."""
        if min(observation.image_shape[1:]) == 1:
            raise NotApplicable("total variation needs pictures of several rows and columns")
        return total_variation


def total_variation(images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, ""]:
    """mean |d_x| + mean |d_y|, of the differences to the right and to the lower neighbour (Geiping et al. 2020)."""
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    return across.abs().mean() + down.abs().mean()
