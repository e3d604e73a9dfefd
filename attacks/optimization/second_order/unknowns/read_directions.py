"""What a model reads of images, as the unknowns of a search: no more than its patch projection lets through."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.forward_mode import jacobian_product
from attacks.optimization.parametrisation import PixelSpace
from attacks.optimization.problem import Problem
from attacks.optimization.second_order.residual.residual import Residual, shape_of
from fedsim.bounds.gaussian_prior import ImagePrior
from fedsim.observation import Observation

MOST_PIXELS = 4_096
"""Of one image, all colours: the covariance of larger ones is not held."""
UNSEEN = 1e-8
"""Change of what is shared that is rounding, of that along what the model reads."""
LEAST = 1e-10
"""What a direction is read by, of the most that one is: less is rounding."""


@dataclass(frozen=True)
class ReadDirections:
    """z of x = μ + C^½Vz, V spanning what the model reads of x: of images that it reads alike, the likeliest.

    Attributes:
        directions: V, orthonormal, so that z is of the prior's standard deviations.
        middle: the model's input of z = 0.
        width: what z adds to it, in float64 and in float32.
    """

    observation: Observation
    prior: ImagePrior
    shape: tuple[int, ...]
    directions: Float[Tensor, "pixels read"]
    middle: Float[Tensor, " pixels"]
    width: tuple[Float[Tensor, "pixels read"], Float[Tensor, "pixels read"]]

    @classmethod
    def of(
        cls,
        problem: Problem,
        prior: ImagePrior,
        make_residual: Callable[[], Residual],
        fit: Callable[[int], bool],
        device: torch.device,
    ) -> "ReadDirections | None":
        """None where the model reads all of an image, or what is shared tells more of it than the model reads.

        The first is so where the model is wider than a patch has numbers, the second where the patch projection's own
        gradient is shared. A start that is given, images of several rounds and those behind noise are varied whole.

        Args:
            make_residual: that of the points of the problem's space, which takes a while.
            fit: whether so many unknowns are few enough.
        """
        observation, shape = problem.observation, shape_of(problem)
        if not isinstance(problem.space, PixelSpace) or problem.start is not None or problem.later:
            return None
        roles, pixels = observation.roles, torch.Size(shape[1:]).numel()
        if roles.obstacles or roles.patch_weight is None or pixels > MOST_PIXELS:
            return None
        if roles.patch_weight in problem.target:
            return None
        weight = observation.global_state[roles.patch_weight].to(device, torch.float64)
        if weight.ndim != 4 or len(weight) < 2 or not _tiled(shape, weight.shape) or weight[0].numel() < len(weight):
            return None
        if not fit(shape[0] * pixels // weight[0].numel() * (len(weight) - 1)):
            return None
        residual = make_residual()
        if residual.before is not None:
            return None
        noise = torch.eye(pixels, dtype=torch.float64, device=device).view(pixels, *shape[1:])
        middle = observation.normalised(prior.coloured(torch.zeros_like(noise[:1])))
        spread = observation.normalised(prior.coloured(noise)) - middle
        centred = weight - weight.mean(dim=0)
        for reads in (centred[:-1], weight):  # a LayerNorm takes off the mean of a token's channels
            directions = _orthonormal(F.conv2d(spread, reads, stride=weight.shape[-2:]).flatten(1))
            width = spread.flatten(1).T @ directions
            found = cls(observation, prior, shape, directions, middle.flatten(), (width, width.float()))
            if 0 < directions.shape[1] < pixels and found._tells_no_more(residual):
                return found
        return None

    @property
    def count(self) -> int:
        """Of unknowns, of all images."""
        return self.shape[0] * self.directions.shape[1]

    def point(self, z: Float[Tensor, " unknowns"]) -> Float[Tensor, " pixels_of_all"]:
        """The model's input, flat."""
        width = self.width[z.dtype == torch.float32]
        return (self.middle.to(z) + z.view(self.shape[0], -1) @ width.T).flatten()

    def unknowns(self, point: Float[Tensor, " pixels_of_all"]) -> Float[Tensor, " unknowns"]:
        """Undoes `point`, of any input: what is not read of it is left out."""
        noise = self.prior.whitened(self.observation.to_unit_range(point.view(self.shape)))
        return (noise.flatten(1) @ self.directions.to(point)).flatten()

    def _tells_no_more(self, residual: Residual) -> bool:
        """Whether what is shared of an image stays the same along what the model does not read of it."""
        rng = torch.Generator().manual_seed(0)
        drawn = self.observation.normalised(self.prior.draw(self.shape, rng)).flatten().to(self.middle)
        read = self.point(self.unknowns(drawn))
        ways = read - self.middle.repeat(self.shape[0]), drawn - read
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            along, beside = (float(jacobian_product(residual, drawn, way).norm() / way.norm()) for way in ways)
        return beside <= UNSEEN * along


def _tiled(shape: tuple[int, ...], kernel: torch.Size) -> bool:
    """Whether the projection's patches make up the images."""
    return shape[1] == kernel[1] and all(side % of == 0 for side, of in zip(shape[2:], kernel[2:], strict=True))


def _orthonormal(columns: Float[Tensor, "pixels reads"]) -> Float[Tensor, "pixels read"]:
    """A basis of what the columns span, the same on every machine but for rounding: a search may go on elsewhere.

    Not where columns depend on one another.
    """
    Q, R = torch.linalg.qr(columns)
    own = R.diagonal()
    basis: Tensor = Q * own.sign()
    if not bool((own.abs() > LEAST * own.abs().max()).all()):
        left, values, _ = torch.linalg.svd(columns, full_matrices=False)
        basis = left[:, values > LEAST * values[0]]
    return basis
