"""What varies among images, as the unknowns of a search: in standard deviations of a prior."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.observation import Observation

VARIES, SHARE = 1.0 / 256.0, 0.01
"""Standard deviation of a coefficient, and its share of the largest: what varies less than either stays at its mean, as
the colours of gray images do."""
TOGETHER = 256
"""Coefficients whose patterns are held at once."""


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
        middle = prior.coloured(torch.zeros((1, *shape[1:]), dtype=torch.float64, device=device))
        pixels, found = middle.numel(), []
        for begin in range(0, pixels, TOGETHER):
            noise = torch.zeros(min(TOGETHER, pixels - begin), pixels, dtype=torch.float64, device=device)
            noise.diagonal(begin).fill_(1.0)
            found.append((prior.coloured(noise.view(-1, *shape[1:])) - middle).flatten(1).norm(dim=1))
        std = torch.cat(found)
        return cls(observation, prior, shape, (std > min(VARIES, SHARE * float(std.max()))).nonzero()[:, 0])

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
