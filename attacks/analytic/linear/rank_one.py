"""The input of a linear layer from the gradients of its weight and bias: pure maths of the bias attack."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class LinearInput:
    """The x of ∂L/∂W[i] = ∂L/∂b[i]·x over all units i, and what the units say about it.

    Attributes:
        variance: of each entry of x, from the scatter of the units around x; NaN with fewer than two units.
        residual: ‖∂L/∂W - ∂L/∂b xᵀ‖ / ‖∂L/∂W‖: 0 up to rounding where one input explains every unit.
        units: how many units have a gradient.
    """

    input: Float[Tensor, " features"]
    variance: Float[Tensor, " features"]
    residual: float
    units: int

    @property
    def mse(self) -> float:
        """Expected mean squared error of x."""
        return float(self.variance.mean())


def solve_input(weight_grad: Float[Tensor, "units features"], bias_grad: Float[Tensor, "units"]) -> LinearInput:
    """Average ∂L/∂W[i] / ∂L/∂b[i] over the units i, each by what it is worth; float64.

    Phong et al. 2018, section III; Geiping et al. 2020, proposition 3.1. Any weights w give Σ w_i ∂W[i] / Σ w_i ∂b[i].
    Best are w = 1/∂b where each unit's noise is in proportion to its gradient (the rounding of a float32 gradient),
    ∂b where it is the same in all (noise, the rounding of a delta); the latter direction is taken from the whole matrix
    [∂W ∂b], so that noise in ∂b alone does not bias it. The one whose scatter predicts the smaller error is taken.

    Raises:
        ValueError: no unit has a gradient of its bias.
    """
    W, b = weight_grad.double(), bias_grad.double()
    active = b != 0
    if not bool(active.any()):
        raise ValueError("no unit has a gradient of its bias")
    W, b = W[active], b[active]
    if len(b) == 1:
        x = W[0] / b[0]
        return LinearInput(x, torch.full_like(x, math.nan), 0.0, 1)
    direction = _leading_direction(torch.cat([W, b[:, None]], dim=1))
    solutions = [_weighted(W, b, weights) for weights in (1.0 / b, b.sign(), b, direction)]
    return min(solutions, key=lambda solution: solution.mse if math.isfinite(solution.mse) else math.inf)


def _weighted(
    W: Float[Tensor, "units features"], b: Float[Tensor, "units"], weights: Float[Tensor, "units"]
) -> LinearInput:
    total = weights @ b
    x = (weights @ W) / total
    rest = W - b[:, None] * x
    # White's estimate: right whatever the noise of each unit is. The factor is that of the lost degree of freedom.
    freedom = len(b) / (len(b) - 1)
    variance = freedom * (weights.square() @ rest.square()) / total.square()
    residual = float(rest.norm() / W.norm().clamp(min=1e-300))
    return LinearInput(x, variance, residual, len(b))


def _leading_direction(rows: Float[Tensor, "units columns"]) -> Float[Tensor, "units"]:
    """The first left singular vector, by power iteration: it converges at once where rows are all but rank one."""
    direction = rows @ (rows.T @ rows[:, -1])
    for _ in range(20):
        direction = direction / direction.norm().clamp(min=1e-300)
        direction = rows @ (rows.T @ direction)
    leading: Tensor = direction / direction.norm().clamp(min=1e-300)
    return leading


def parallel_units(
    weight_grad: Float[Tensor, "units features"],
    bias_grad: Float[Tensor, "units"],
    tolerance: float,
    floor: float = 1e-9,
) -> list[Int[Tensor, "members"]]:
    """Groups of at least two units whose [∂W[i] ∂b[i]] are parallel, the largest first.

    A unit that one sample alone activates holds (δ/B)·[x 1] of that sample; mixtures of several samples differ from
    unit to unit, unless the errors of these samples are parallel: always with two classes, and within any tolerance for
    samples of one label and nearly the same softmax. A group then holds one sample, or one mixture of such samples.

    Args:
        tolerance: largest sine of the angle between parallel rows.
        floor: units whose row is smaller than this share of the largest are left out: rounding alone.
    """
    rows = torch.cat([weight_grad, bias_grad[:, None]], dim=1).double()
    norms = rows.norm(dim=1)
    usable = ((norms > floor * norms.max()) & (bias_grad != 0)).nonzero().flatten()
    rows = rows[usable] / norms[usable, None]
    # sin² = 1 - cos²: in float64 it cannot tell sines below 1e-8 from 0, which no shared gradient needs.
    near = 1.0 - (rows @ rows.T).clamp(max=1.0).square() <= max(tolerance, 1e-7) ** 2
    free = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    groups = []
    for start in near.sum(dim=1).argsort(descending=True, stable=True).tolist():
        if not bool(free[start]):
            continue
        members = near[start] & free
        if int(members.sum()) >= 2:
            groups.append(usable[members])
            free &= ~members
    return sorted(groups, key=len, reverse=True)
