"""Steps with a prior of images that fades as what was shared is explained: what nothing settles yet stays likely."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.steps.levenberg_marquardt import FIRST_DAMPING, Linearised, LMState, take_step

FADES = 0.3
"""The prior's weight, times so much after each step that brings little."""
LITTLE = 0.1
"""Relative fall of the cost."""
WITH_PRIOR = 0.75


def descend_with_fading(
    residual: Residual,
    whitened: Callable[[Tensor], Float[Tensor, " rows"]],
    x: Float[Tensor, " unknowns"],
    steps: int,
    linearised: Callable[[Residual, float], Callable[[Tensor], Linearised]],
    report: Callable[[float], None],
    enough: float,
    with_prior: float = WITH_PRIOR,
) -> tuple[Float[Tensor, " unknowns"], bool]:
    """Where the steps end, and whether the shared numbers are explained as far as is enough.

    Each of the prior's rows weighs as much as one of them would that had its share of what is left.

    Args:
        whitened: the prior's rows.
        linearised: linear models of a residual that holds the prior by this weight.
        with_prior: share of the steps after which there is none.
    """
    state, left = LMState(x), _left(residual, x)
    count = len(whitened(x))
    weight = left / count
    for number in range(steps):
        weight = weight if number < with_prior * steps else 0.0
        held = held_by_prior(residual, whitened, weight)
        before = float(held(state.x).square().sum())
        take_step(state, held, linearised(held, weight))
        left = _left(residual, state.x)
        report(left)
        if left <= enough:
            return state.x, True
        if state.ended and not weight:
            break
        slow = state.ended or state.cost > (1.0 - LITTLE) * before
        weight = min(weight * (FADES if slow else 1.0), left / count)
        if state.ended:
            state = LMState(state.x, 10.0 * FIRST_DAMPING)
    return state.x, False


def held_by_prior(residual: Residual, whitened: Callable[[Tensor], Tensor], weight: float) -> Residual:
    """With the prior's rows besides, by this weight."""
    if not weight:
        return residual
    own, scale = residual.before, math.sqrt(weight)

    def before(x: Tensor) -> Tensor:
        prior = scale * whitened(x)
        return prior if own is None else torch.cat([own(x), prior])

    return replace(residual, before=before)


def _left(residual: Residual, x: Tensor) -> float:
    """‖r‖² of what was shared."""
    return float(replace(residual, before=None)(x).square().sum())
