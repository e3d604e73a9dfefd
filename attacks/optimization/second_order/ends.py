"""Where the starts of a search ended, and how far they vouch for one another."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
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


def agreement(
    ends: Sequence[End],
    mean: Float[Tensor, " unknowns"],
    alone: float = 1.0,
    labels: Int[Tensor, " batch"] | None = None,
) -> float:
    """How alike the best end and another one are in what sets them apart from the mean: from 0 to 1.

    Where errors of starts are independent, so much of what sets an end apart from the mean is the image's.

    Args:
        alone: where no other end explains about as much.
        labels: of a batch's images, one after the other in an end: those of one class have no order.
    """
    best = best_of(ends)
    rivals = [end.x for end in ends if end is not best and end.cost <= RIVAL * best.cost]
    alike = (_cosine(best.x - mean, x - mean, labels) for x in rivals)
    return max(0.0, *alike) if rivals else alone


def _cosine(a: Float[Tensor, " unknowns"], b: Float[Tensor, " unknowns"], labels: Tensor | None) -> float:
    """Of the order of b's images, within each class, in which it is greatest."""
    if labels is None or len(labels.unique()) == len(labels):
        return float(torch.cosine_similarity(a, b, dim=0))
    products = (a.view(len(labels), -1) @ b.view(len(labels), -1).T).cpu()
    alike = (labels[:, None] == labels[None, :]).cpu()
    least = products.min() - products.abs().sum() - 1.0
    rows, columns = linear_sum_assignment(torch.where(alike, products, least).numpy(), maximize=True)
    return float(products[rows, columns].sum()) / max(float(a.norm() * b.norm()), 1e-300)
