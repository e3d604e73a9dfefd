"""Levenberg-Marquardt: Gauss-Newton steps as long as a linear model can be trusted, bent along the residual's curve."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.optimization.second_order.steps.sketch import gram

FIRST_DAMPING = 1e-3
MIN_DIAGONAL = 1e-12
"""Of the largest entry: directions that nothing determines are damped as if they had this curvature."""
REFUSALS = 12
"""Trials of one step before the search counts as ended."""
MOST_BENT = 0.375
"""Of a step's length, which its second-order correction may have (Transtrum and Sethna 2012: half of 0.75)."""
DIFFERENCE = 0.1
"""Of a step, by which its second derivative is taken."""
STRAIGHT = 1e-6
"""Of the point's length, below which a step is not bent: rounding would hide its second derivative."""
LEAST_FALL, PATIENCE = 1e-3, 6
"""Relative fall of ‖r‖² that counts as progress; so many steps without it end a search."""
SHRINK = 1.0 / 3.0
"""Of λ, after a bent step that was taken."""


@dataclass
class LMState:
    """Where a search stands, and its damping.

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


@runtime_checkable
class GeodesicAcceleration(Linearised, Protocol):
    """A linear model that is solved again for little: its steps follow the curve of the residual."""

    def bend(
        self, damping: float, step: Float[Tensor, " unknowns"], second: Float[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " unknowns"], float]:
        """What the residual's second derivative along a step adds to it, and its length in lengths of the step."""


@dataclass(frozen=True)
class NormalEquations:
    """‖r‖², JᵀJ and Jᵀr: those of several rounds are sums, so that one round's J is held at a time."""

    cost: float
    matrix: Float[Tensor, "unknowns unknowns"]
    slope: Float[Tensor, " unknowns"]

    @classmethod
    def of(cls, r: Float[Tensor, " rows"], J: Float[Tensor, "rows unknowns"]) -> "NormalEquations":
        return cls(float(r.square().sum()), gram(J.T), J.T @ r)

    def __add__(self, other: "NormalEquations") -> "NormalEquations":
        return NormalEquations(self.cost + other.cost, self.matrix + other.matrix, self.slope + other.slope)


class DenseModel:
    """J whole: Δ = -(JᵀJ + λD)⁻¹Jᵀr with D the diagonal of JᵀJ, or its mean where unknowns have one unit.

    Args:
        back: Jᵀ of a vector.
        even: so many of the first unknowns have one unit, as a prior's standard deviations have: D is the mean of their
            diagonal, so that a damped step is short in that unit.
    """

    def __init__(self, normal: NormalEquations, back: Callable[[Tensor], Tensor], even: int = 0) -> None:
        self.cost, self._back = normal.cost, back
        self._normal, self._slope = normal.matrix, normal.slope
        diagonal = self._normal.diagonal()
        least = max(MIN_DIAGONAL * float(diagonal.max()), torch.finfo(diagonal.dtype).tiny)
        diagonal = torch.cat([diagonal[:even].mean().expand(even), diagonal[even:]])
        self._damped = torch.diag(diagonal.clamp(min=least))
        self._factors: tuple[float, Factors] | None = None

    def step(self, damping: float) -> tuple[Float[Tensor, " unknowns"], float]:
        step = -self._solve(damping, self._slope)
        return step, -float(2.0 * self._slope @ step + step @ (self._normal @ step))

    def bend(
        self, damping: float, step: Float[Tensor, " unknowns"], second: Float[Tensor, " rows"]
    ) -> tuple[Float[Tensor, " unknowns"], float]:
        bent = -0.5 * self._solve(damping, self._back(second))
        size = self._damped.diagonal().sqrt()
        return bent, float((size * bent).norm() / (size * step).norm())

    def _solve(self, damping: float, right: Float[Tensor, " unknowns"]) -> Float[Tensor, " unknowns"]:
        """A step and what bends it have one factorisation."""
        if self._factors is None or self._factors[0] != damping:
            self._factors = damping, Factors.of(self._normal + damping * self._damped)
        return self._factors[1].solve(right)


def take_step(
    state: LMState,
    residual: Callable[[Tensor], Float[Tensor, " rows"]],
    linearised: Callable[[Tensor], Linearised],
) -> None:
    """λ grows until the cost falls; a step that raises the cost, or bends too far, is not taken.

    Bent steps are those of Transtrum and Sethna (2012): along a curved valley they are several times as long. Others
    follow the gain ratio (Nielsen 1999).
    """
    model = linearised(state.x)
    state.cost = model.cost
    for _ in range(REFUSALS):
        step, predicted = model.step(state.damping)
        bends = isinstance(model, GeodesicAcceleration)
        if isinstance(model, GeodesicAcceleration) and float(step.norm()) > STRAIGHT * float(state.x.norm()):
            bent, share = model.bend(state.damping, step, second_derivative(residual, state.x, step))
            step = step + bent if share <= MOST_BENT else torch.full_like(step, math.nan)
        cost = float(residual(state.x + step).square().sum())
        if cost < state.cost:
            gain = (state.cost - cost) / max(predicted, torch.finfo(step.dtype).tiny)
            state.x, state.cost = state.x + step, cost
            state.damping *= SHRINK if bends else max(1.0 / 8.0, 1.0 - (2.0 * min(gain, 1.5) - 1.0) ** 3)
            state.growth = 2.0
            return
        state.damping *= state.growth
        state.growth *= 2.0
    state.ended = True


def second_derivative(
    residual: Callable[[Tensor], Float[Tensor, " rows"]],
    x: Float[Tensor, " unknowns"],
    step: Float[Tensor, " unknowns"],
) -> Float[Tensor, " rows"]:
    """The residual's second derivative along a step, by central differences."""
    h = DIFFERENCE
    found: Tensor = (residual(x + h * step) - 2.0 * residual(x) + residual(x - h * step)) / h**2
    return found


@dataclass(frozen=True)
class Factors:
    """LU of a matrix scaled to a unit diagonal: tensors of other sizes than pixels would spoil it.

    Of a singular one steps are no numbers, and refused.
    """

    scale: Float[Tensor, " n"]
    lu: Float[Tensor, "n n"]
    pivots: Int[Tensor, " n"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "n n"]) -> "Factors":
        scale = matrix.diagonal().clamp(min=torch.finfo(matrix.dtype).tiny).rsqrt()
        return cls(scale, *torch.linalg.lu_factor_ex(scale[:, None] * matrix * scale[None])[:2])

    def solve(self, right: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        found: Tensor = self.scale * torch.linalg.lu_solve(self.lu, self.pivots, (self.scale * right)[:, None])[:, 0]
        return found
