"""What varies among images, as the unknowns of a search: in standard deviations of a prior."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.observation import Observation

VARIES = 1.0 / 256.0
"""Standard deviation of a coefficient: what varies less stays at its mean, as the colours of gray images do."""


@dataclass(frozen=True)
class PriorDirections:
    """z of x = μ + C^½z, for each image of a batch; without those coordinates along which images hardly vary.

    Attributes:
        shape: of the batch.
        varied: coefficients of `ImagePrior.coloured`, of one image.
    """

    observation: Observation
    prior: ImagePrior
    shape: tuple[int, ...]
    varied: Int[Tensor, " varied"]

    @classmethod
    def of(
        cls, observation: Observation, prior: ImagePrior, shape: tuple[int, ...], device: torch.device
    ) -> "PriorDirections":
        noise = torch.eye(torch.Size(shape[1:]).numel(), dtype=torch.float64, device=device).view(-1, *shape[1:])
        std = (prior.coloured(noise) - prior.coloured(torch.zeros_like(noise[:1]))).flatten(1).norm(dim=1)
        varies = std > VARIES
        return cls(observation, prior, shape, (varies if varies.any() else std > 0.0).nonzero()[:, 0])

    @property
    def count(self) -> int:
        """Of unknowns, of all images."""
        return self.shape[0] * len(self.varied)

    def point(self, z: Float[Tensor, " unknowns"]) -> Float[Tensor, " pixels"]:
        """The model's input, flat."""
        each = z.view(self.shape[0], -1)
        noise = each.new_zeros(len(each), torch.Size(self.shape[1:]).numel()).index_copy(1, self.varied, each)
        return self.observation.from_unit_range(self.prior.coloured(noise.view(self.shape))).flatten()

    def unknowns(self, point: Float[Tensor, " pixels"]) -> Float[Tensor, " unknowns"]:
        """Undoes `point`, of any input: what hardly varies is left out."""
        noise = self.prior.whitened(self.observation.to_unit_range(point.view(self.shape)))
        return noise.flatten(1)[:, self.varied].flatten()
