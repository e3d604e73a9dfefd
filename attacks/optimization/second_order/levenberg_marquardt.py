"""Levenberg-Marquardt with the gain ratio: Gauss-Newton steps as long as the linear model can be trusted."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

FIRST_DAMPING = 1e-3
MIN_DIAGONAL = 1e-12
"""Of the largest entry: directions that nothing determines are damped as if they had this curvature."""
REFUSALS = 12
"""Trials of one step before the search counts as ended."""


@dataclass
class Damped:
    """Where a search stands, and its damping (Nielsen 1999).

    Attributes:
        cost: ‖r(x)‖².
        ended: no step lowers the cost any more.
    """

    x: Float[Tensor, " unknowns"]
    damping: float = FIRST_DAMPING
    growth: float = 2.0
    cost: float = field(default=float("inf"))
    ended: bool = False


def take_step(
    state: Damped,
    residual: Callable[[Tensor], Float[Tensor, " rows"]],
    jacobian: Callable[[Tensor], Float[Tensor, "rows unknowns"]],
) -> None:
    """Δ = -(JᵀJ + λD)⁻¹Jᵀr with D the diagonal of JᵀJ; λ grows until the cost falls, and follows the gain ratio.

    A step that raises the cost is not taken.
    """
    r = residual(state.x)
    state.cost = float(r.square().sum())
    J = jacobian(state.x)
    normal, slope = J.T @ J, J.T @ r
    diagonal = normal.diagonal()
    diagonal = diagonal.clamp(min=max(MIN_DIAGONAL * float(diagonal.max()), torch.finfo(r.dtype).tiny))
    for _ in range(REFUSALS):
        step = -_solve(normal + state.damping * torch.diag(diagonal), slope)
        cost = float(residual(state.x + step).square().sum())
        predicted = -float(2.0 * slope @ step + step @ (normal @ step))
        if cost < state.cost:
            gain = (state.cost - cost) / max(predicted, torch.finfo(r.dtype).tiny)
            state.x, state.cost = state.x + step, cost
            state.damping *= max(1.0 / 8.0, 1.0 - (2.0 * min(gain, 1.5) - 1.0) ** 3)
            state.growth = 2.0
            return
        state.damping *= state.growth
        state.growth *= 2.0
    state.ended = True


def _solve(matrix: Float[Tensor, "n n"], right: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Scaled to a unit diagonal first: tensors of other sizes than pixels would spoil the factorisation."""
    scale = matrix.diagonal().clamp(min=torch.finfo(matrix.dtype).tiny).rsqrt()
    found: Tensor = scale * torch.linalg.solve(scale[:, None] * matrix * scale[None], scale * right)
    return found
