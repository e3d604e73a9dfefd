"""What a large search varies: the frequencies of images in units of a prior, low ones first."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsim.bounds.gaussian_prior import ImagePrior

RATE = 0.1
"""Of first-order steps, in standard deviations of the prior."""


@dataclass(frozen=True)
class Frequencies:
    """z of x = μ + C^½z, for all images of a batch together.

    Attributes:
        order: of the coefficients of `ImagePrior.coloured`, by their frequency.
        mean, std: by which the model's input is normalised.
    """

    prior: ImagePrior
    shape: tuple[int, ...]
    order: Int[Tensor, " unknowns"]
    mean: Float[Tensor, "1 c 1 1"]
    std: Float[Tensor, "1 c 1 1"]

    @classmethod
    def of(
        cls, prior: ImagePrior, shape: tuple[int, ...], mean: Tensor, std: Tensor, device: torch.device
    ) -> "Frequencies":
        rows, columns = (torch.arange(size, dtype=torch.float64) / size for size in shape[-2:])
        radius = torch.hypot(rows[:, None], columns[None]).expand(shape)
        order = torch.argsort(radius.flatten(), stable=True)
        return cls(prior, shape, order.to(device), mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1))

    def point(self, z: Float[Tensor, " unknowns"]) -> Float[Tensor, " unknowns"]:
        """The model's input, flat."""
        noise = torch.zeros_like(z).index_put((self.order,), z).view(self.shape)
        images = self.prior.coloured(noise).to(z)
        return ((images - self.mean.to(z)) / self.std.to(z)).flatten()

    def coordinates(self, point: Float[Tensor, " unknowns"]) -> Float[Tensor, " unknowns"]:
        """Undoes `point`."""
        images = point.view(self.shape) * self.std.to(point) + self.mean.to(point)
        return self.prior.whitened(images).flatten()[self.order]


def first_order(
    residual: Callable[[Tensor], Float[Tensor, " rows"]], x: Float[Tensor, " unknowns"], steps: int
) -> Float[Tensor, " unknowns"]:
    """Signed Adam on ‖r(x)‖² with a cosine's rate: to a valley that Gauss-Newton steps can follow."""
    point = x.detach().clone().requires_grad_()
    adam = torch.optim.Adam([point], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    with torch.enable_grad():
        for _ in range(steps):
            point.grad = torch.autograd.grad(residual(point).square().sum(), point)[0].sign()
            adam.step()
            schedule.step()
    return point.detach()
