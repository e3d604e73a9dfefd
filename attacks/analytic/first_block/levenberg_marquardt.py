"""Levenberg-Marquardt for many small systems at once, with deflation of the solutions that are known already."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SHRINK, GROW = 0.2, 4.0
DAMPING = 1e-2
DAMPING_RANGE = (1e-14, 1e8)


@dataclass(frozen=True)
class Squares:
    """‖r‖², Jᵀr and JᵀJ of each system."""

    cost: Float[Tensor, " systems"]
    gradient: Float[Tensor, "systems unknowns"]
    matrix: Float[Tensor, "systems unknowns unknowns"]

    def where(self, chosen: Tensor, other: "Squares") -> "Squares":
        return Squares(
            torch.where(chosen, self.cost, other.cost),
            torch.where(chosen[:, None], self.gradient, other.gradient),
            torch.where(chosen[:, None, None], self.matrix, other.matrix),
        )


@dataclass(frozen=True)
class Step:
    """One row of the way: medians over the systems."""

    cost: float
    damping: float


def deflated(
    normal: Squares,
    x: Float[Tensor, "systems unknowns"],
    known: Float[Tensor, "systems known unknowns"],
    radius: float,
) -> Squares:
    """The system η r with η² = Π(1 + radius²/‖x - x_k‖²), which no longer vanishes at the known x_k.

    The deflation of Farrell et al. 2015. Unknown entries of `known` are inf: they change nothing.
    """
    away = x[:, None] - known
    distance = away.square().sum(dim=2).clamp(min=torch.finfo(x.dtype).tiny)
    weight = radius**2 / distance
    factor = (1.0 + weight).prod(dim=1)
    slope = -(weight / (1.0 + weight) / distance)[..., None] * torch.where(away.isfinite(), away, 0.0)
    slope = slope.sum(dim=1)
    cross = normal.gradient[:, :, None] * slope[:, None]
    outer = normal.cost[:, None, None] * slope[:, :, None] * slope[:, None]
    return Squares(
        factor * normal.cost,
        factor[:, None] * (normal.gradient + normal.cost[:, None] * slope),
        factor[:, None, None] * (normal.matrix + cross + cross.mT + outer),
    )


def minimise(
    evaluate: Callable[[Float[Tensor, "systems unknowns"]], Squares],
    x: Float[Tensor, "systems unknowns"],
    steps: int,
) -> tuple[Float[Tensor, "systems unknowns"], list[Step]]:
    """Damped Gauss-Newton steps, each system with its own damping; a step that raises the cost is not taken."""
    damping = torch.full((len(x),), DAMPING, dtype=x.dtype, device=x.device)
    now = evaluate(x)
    way = []
    for _ in range(steps):
        mean = now.matrix.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=torch.finfo(x.dtype).tiny)
        damped = now.matrix + torch.diag_embed((damping * mean)[:, None].expand_as(x))
        trial = x - torch.linalg.solve(damped, now.gradient)
        then = evaluate(trial)
        better = then.cost < now.cost
        x, now = torch.where(better[:, None], trial, x), then.where(better, now)
        damping = torch.where(better, damping * SHRINK, damping * GROW).clamp(*DAMPING_RANGE)
        way.append(Step(float(now.cost.median()), float(damping.median())))
        if not bool(better.any()) and bool((damping > 1.0).all()):
            break
    return x, way
