"""Levenberg-Marquardt with the gain ratio: Gauss-Newton steps as long as the linear model can be trusted."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.sketch import gram

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


class Linearised(Protocol):
    """A residual's linear model at one point.

    Attributes:
        cost: ‖r‖² there.
    """

    cost: float

    def step(self, damping: float) -> tuple[Float[Tensor, " unknowns"], float]:
        """The damped step, and how far the model says that the cost falls."""


@dataclass(frozen=True)
class Normal:
    """‖r‖², JᵀJ and Jᵀr: those of several rounds are sums, so that one round's J is held at a time."""

    cost: float
    matrix: Float[Tensor, "unknowns unknowns"]
    slope: Float[Tensor, " unknowns"]

    @classmethod
    def of(cls, r: Float[Tensor, " rows"], J: Float[Tensor, "rows unknowns"]) -> "Normal":
        return cls(float(r.square().sum()), gram(J.T), J.T @ r)

    def __add__(self, other: "Normal") -> "Normal":
        return Normal(self.cost + other.cost, self.matrix + other.matrix, self.slope + other.slope)


class Whole:
    """J whole: Δ = -(JᵀJ + λD)⁻¹Jᵀr with D the diagonal of JᵀJ."""

    def __init__(self, normal: Normal) -> None:
        self.cost = normal.cost
        self._normal, self._slope = normal.matrix, normal.slope
        diagonal = self._normal.diagonal()
        least = max(MIN_DIAGONAL * float(diagonal.max()), torch.finfo(diagonal.dtype).tiny)
        self._damped = torch.diag(diagonal.clamp(min=least))

    def step(self, damping: float) -> tuple[Float[Tensor, " unknowns"], float]:
        step = -_solve(self._normal + damping * self._damped, self._slope)
        return step, -float(2.0 * self._slope @ step + step @ (self._normal @ step))


def take_step(
    state: Damped,
    residual: Callable[[Tensor], Float[Tensor, " rows"]],
    linearised: Callable[[Tensor], Linearised],
) -> None:
    """λ grows until the cost falls, and follows the gain ratio; a step that raises the cost is not taken."""
    model = linearised(state.x)
    state.cost = model.cost
    for _ in range(REFUSALS):
        step, predicted = model.step(state.damping)
        cost = float(residual(state.x + step).square().sum())
        if cost < state.cost:
            gain = (state.cost - cost) / max(predicted, torch.finfo(step.dtype).tiny)
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
