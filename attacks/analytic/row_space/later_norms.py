"""Gauss-Newton on the row spaces behind the first: what later projections read lies in the span of their gradients.

Once the patches are roughly known, so is everything that the first blocks compute from them, and each projection whose
gradient was shared adds D - T equations for every token: Q_l u_l(p) = 0. The first block's MLP alone knows its inputs
ten times better than the attention does (its gradient is better conditioned), and the MLP between them, which is not
linear, removes the mixtures of patches that the linear system cannot tell apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp

from attacks.analytic.row_space.first_norm import FirstNorm
from attacks.analytic.row_space.subspace import Subspace
from attacks.forward_mode import jacobian_product

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

NONLINEAR_SHARE = (0.0, 0.04, 0.2, 0.2)
"""How much of a change of a token each projection sees in directions that no linear equation reaches, at random
initialisation: the first MLP 0.04, behind it 0.2. It scales the search directions only."""


@dataclass(frozen=True)
class Readers:
    """Projections of the first blocks, in the model's order, and the row spaces of their gradients.

    Without a model only the first one, whose input needs none.
    """

    norm: FirstNorm
    spaces: Sequence[Subspace]
    model: "VisionTransformer | None" = None
    prefix: Float[Tensor, "prefix width"] | None = None

    def inputs(self, patches: Float[Tensor, "tokens pixels"]) -> list[Float[Tensor, "all width"]]:
        """u_l of every token, prefix tokens first (without a model none), for as many projections as spaces."""
        from timm.models.vision_transformer import Block

        z = patches @ self.norm.patch_weight.T + self.norm.known
        if self.model is None or self.prefix is None:
            return [F.layer_norm(z, z.shape[1:], self.norm.scale, self.norm.shift, self.norm.eps)]
        z = torch.cat([self.prefix, z])[None]
        found: list[Tensor] = []
        for block in self.model.blocks:
            assert isinstance(block, Block)
            u = block.norm1(z)
            found.append(u[0])
            if len(found) == len(self.spaces):
                break
            z = z + block.ls1(block.attn(u))
            u = block.norm2(z)
            found.append(u[0])
            if len(found) == len(self.spaces):
                break
            z = z + block.ls2(block.mlp(u))
        return found


@dataclass(frozen=True)
class Refined:
    """Where Gauss-Newton on the later projections ended.

    Attributes:
        coordinates: of each patch.
        misfit: root mean square of the equations over their expected noise: about 1 or less at the truth.
    """

    coordinates: Float[Tensor, "tokens unknowns"]
    misfit: float


def refine(
    readers: Readers,
    base: Float[Tensor, "tokens pixels"],
    directions: Float[Tensor, "unknowns pixels"],
    start: Float[Tensor, "tokens unknowns"],
    floors: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5),
    iterations: int = 40,
) -> Refined:
    """Minimise Σ_l ‖Q_l u_l(base + c·directions)‖² / noise_l² over the coordinates c.

    Args:
        floors: noise of an equation is taken for at least this, one Gauss-Newton step each: large at first, where
            the model's curvature is larger than the noise.

    Returns:
        the start where it satisfies the equations better.
    """
    embedded = directions @ readers.norm.patch_weight.T
    centred = embedded - embedded.mean(dim=1, keepdim=True)
    stiffness = [_stiffness(centred, space, number) for number, space in enumerate(readers.spaces)]
    coordinates = start

    def patches(c: Tensor) -> Tensor:
        return base + c @ directions

    def noises(c: Tensor) -> list[float]:
        pairs = zip(readers.spaces, readers.inputs(patches(c)), strict=True)
        return [max(1e-15, float(space.leak(u).median())) for space, u in pairs]

    for floor in floors:
        weights = [1.0 / max(noise, floor) for noise in noises(coordinates)]
        equations = _equations(readers, patches, weights)
        bound = torch.stack([w**2 * part for w, part in zip(weights, stiffness, strict=True)]).sum(dim=0)
        ridge = 1e-12 * bound.diagonal().mean()
        factor = torch.linalg.cholesky(bound + ridge * torch.eye(len(bound), dtype=bound.dtype, device=bound.device))
        tokens = patches(coordinates) @ readers.norm.patch_weight.T + readers.norm.known
        sizes = tokens.std(dim=1, unbiased=False, keepdim=True)
        coordinates = _gauss_newton(equations, coordinates, factor, sizes, iterations)
    judged = _equations(readers, patches, [1.0 / noise for noise in noises(coordinates)])
    misfits = [float(judged(c).square().mean().sqrt()) for c in (coordinates, start)]
    return Refined(coordinates, misfits[0]) if misfits[0] < misfits[1] else Refined(start, misfits[1])


def _stiffness(
    centred: Float[Tensor, "unknowns width"], space: Subspace, number: int
) -> Float[Tensor, "unknowns unknowns"]:
    """JᵀJ of one projection's equations, were it to read the embedding itself and γ = 1; speeds the solution up."""
    linear = centred @ space.null.T
    share = NONLINEAR_SHARE[min(number, len(NONLINEAR_SHARE) - 1)]
    product: Tensor = linear @ linear.T + share**2 * centred @ centred.T
    return product


def _equations(
    readers: Readers, patches: Callable[[Tensor], Tensor], weights: Sequence[float]
) -> Callable[[Tensor], Tensor]:
    def equations(c: Tensor) -> Tensor:
        found = zip(weights, readers.inputs(patches(c)), readers.spaces, strict=True)
        return torch.cat([weight * (u @ space.null.T) for weight, u, space in found], dim=1)

    return equations


def _gauss_newton(
    equations: Callable[[Tensor], Tensor],
    start: Float[Tensor, "tokens unknowns"],
    factor: Float[Tensor, "unknowns unknowns"],
    sizes: Float[Tensor, "tokens 1"],
    iterations: int,
) -> Float[Tensor, "tokens unknowns"]:
    """One step, its linear system solved by conjugate gradients on whitened unknowns, halved until it improves."""
    misfit, pull = vjp(equations, start)[:2]

    def push(direction: Tensor) -> Tensor:
        return jacobian_product(equations, start, direction)

    def widen(y: Tensor) -> Tensor:
        widened: Tensor = torch.linalg.solve_triangular(factor.T, y.T, upper=True).T * sizes
        return widened

    def gradient(rest: Tensor) -> Tensor:
        slope: Tensor = torch.linalg.solve_triangular(factor, (pull(rest)[0] * sizes).T, upper=False).T
        return slope

    whitened, rest = torch.zeros_like(start), -misfit
    steepest = gradient(rest)
    direction, size = steepest, float(steepest.square().sum())
    enough = 1e-16 * size
    for _ in range(iterations):
        if size <= enough:
            break
        change = push(widen(direction))
        length = size / float(change.square().sum())
        whitened = whitened + length * direction
        rest = rest - length * change
        steepest = gradient(rest)
        new = float(steepest.square().sum())
        direction, size = steepest + (new / size) * direction, new
    step, before = widen(whitened), float(misfit.norm())
    for halving in range(6):
        moved = start + step / 2.0**halving
        if float(equations(moved).norm()) < before:
            return moved
    return start
