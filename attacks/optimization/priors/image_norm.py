"""Pixels stay near the mean of the data."""

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.priors.base import TINY, Prior, PriorTerm
from fedsim.errors import one_of
from fedsim.observation import Observation

KINDS = ("square", "norm")


class ImageNorm(Prior):
    """The size of the model-normalised pictures; zero is the mean colour of the data (Yin et al. 2021, R_l2).

    Args:
        kind: see `image_norm`. GradInversion states ‖x‖² and a weight of 1e-6: `square`.
    """

    def __init__(
        self, weight: float | int, kind: str = "square", start: float | int = 0.0, end: float | int = 1.0
    ) -> None:
        super().__init__(weight, start, end)
        one_of("prior.kind", kind, KINDS)
        self.kind = kind

    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        return lambda images: image_norm(images, self.kind)


def image_norm(images: Float[Tensor, "batch channels height width"], kind: str = "square") -> Float[Tensor, ""]:
    """The mean over pictures of ‖x‖² (`square`) or of ‖x‖₂ (`norm`)."""
    squares = images.square().sum(dim=(1, 2, 3))
    return squares.mean() if kind == "square" else (squares + TINY).sqrt().mean()
