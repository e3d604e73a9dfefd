"""Of the images that explain an update up to its own errors, the likeliest by a prior."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.residual.one_round import ROUNDINGS
from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.steps.levenberg_marquardt import DenseModel, LMState, NormalEquations, take_step

STEPS = 40
"""At most: each has J whole in float64."""
DAMPING = 1e-16
"""At first: the image is near, and what is hardly told has little curvature."""
LITTLE, PATIENCE = 1.0, 2
"""Fall, in units of the errors' own variance, that no longer counts; so many steps without end it."""
LEAST_VARIANCE = 1.0 / ROUNDINGS**2
"""Of a number, in units of its error: one rounding."""


def likeliest(
    residual: Residual, z: Float[Tensor, " unknowns"], together: int, report: Callable[[float], None]
) -> Float[Tensor, " unknowns"]:
    """The mode of the posterior near z, in standard deviations of a prior.

    A least-squares end follows the errors of what was shared along directions that it hardly tells, by many standard
    deviations of the prior's images. Each number's error is as modelled, but for a factor that is common to all: what
    is left of ‖r‖² tells it, but for what the unknowns absorb; one rounding at least.

    Args:
        residual: of z; noise that a defense added has its own posterior.
        together: columns of J that are computed at once.
        report: is told ‖r‖² after each step, in units of the errors.
    """
    residual = residual.by_errors()
    numbers = max(1, int((residual.weights > 0).sum()))
    free = max(numbers - len(z), numbers / 2)
    state, left, stale = LMState(z, DAMPING), _left(residual, z), 0
    for _ in range(STEPS):
        std = math.sqrt(max(left / free, LEAST_VARIANCE))
        before = left + float((std * state.x).square().sum())
        take_step(state, partial(_rows, residual, std), partial(_model, residual, std, together))
        left = _left(residual, state.x)
        report(left)
        stale = stale + 1 if before - state.cost < LITTLE * std**2 else 0
        if state.ended or stale == PATIENCE:
            break
    return state.x


def _rows(residual: Residual, std: float, z: Float[Tensor, " unknowns"]) -> Float[Tensor, " rows"]:
    return torch.cat([residual(z), std * z])


def _model(residual: Residual, std: float, together: int, z: Float[Tensor, " unknowns"]) -> DenseModel:
    own = std * z
    prior = NormalEquations(float(own.square().sum()), std**2 * torch.eye(len(z)).to(z), std * own)

    def back(rows: Tensor) -> Tensor:
        return residual.transposed(z, rows[: -len(z)]) + std * rows[-len(z) :]

    return DenseModel(residual.normal(z, together) + prior, back, even=len(z))


def _left(residual: Residual, z: Float[Tensor, " unknowns"]) -> float:
    return float(residual(z).square().sum())
