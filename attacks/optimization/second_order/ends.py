"""Where the starts of a search ended, and how far they vouch for one another."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

RIVAL = 10.0
"""Times the least ‖r‖², up to which another start's end speaks against the best one."""


class End(NamedTuple):
    """Where a start ended.

    Attributes:
        cost: ‖r‖² there.
    """

    cost: float
    x: Float[Tensor, " unknowns"]


def best_of(ends: Sequence[End]) -> End:
    """The one that explains the most."""
    return min(ends, key=lambda end: end.cost)


def agreement(ends: Sequence[End], mean: Float[Tensor, " unknowns"], alone: float = 1.0) -> float:
    """How alike the best end and another one are in what sets them apart from the mean: from 0 to 1.

    Where errors of starts are independent, so much of what sets an end apart from the mean is the image's.

    Args:
        alone: where no other end explains about as much.
    """
    best = best_of(ends)
    rivals = [end.x for end in ends if end is not best and end.cost <= RIVAL * best.cost]
    alike = (float(torch.cosine_similarity(best.x - mean, x - mean, dim=0)) for x in rivals)
    return max(0.0, *alike) if rivals else alone
