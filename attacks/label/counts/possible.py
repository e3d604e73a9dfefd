"""Every vector of class counts that the gradient of the head's bias leaves possible.

∂L/∂b = p̄ - ((1 - ε)·n/B + ε/C), and no mean softmax p̄ is negative anywhere: that bounds the count of each class from
below. What the bounds leave of the batch may be of any class, and no other counts are possible. (The sum of p̄ is 1, so
that none exceeds 1 either.)
"""

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import ceil, comb

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.rules.basic import largest_remainder

SLACK = 1e-3
"""Of one example: how far below zero B p̄_c may come out. More than rounding asks for, it only adds counts."""


def least_counts(
    bias_grad: Float[Tensor, "classes"], batch_size: int, label_smoothing: float = 0.0, rounding: float = 0.0
) -> Int[Tensor, "classes"]:
    """What each class was there at least: ⌈(-B ∂L/∂b - B ε/C - slack) / (1 - ε)⌉, no less than 0.

    Args:
        rounding: absolute, of the gradient of the bias as it was shared.
    """
    slack = max(SLACK, batch_size * rounding)
    exact = (-bias_grad.double().cpu() - label_smoothing / len(bias_grad)) * batch_size - slack
    least = [max(0, ceil(value)) for value in (exact / (1.0 - label_smoothing)).clamp(-1.0, 2.0**31).tolist()]
    return torch.tensor(least)


def number_possible(least: Int[Tensor, "classes"], batch_size: int, among: Int[Tensor, "some"] | None = None) -> int:
    """How many count vectors of the batch have at least those; 0 where they exceed it.

    Args:
        among: classes that no other example is of; None: all.
    """
    left, classes = batch_size - int(least.sum()), len(least) if among is None else len(among)
    if left < 0 or (among is not None and int(least[among].sum()) < int(least.sum())):
        return 0
    return comb(left + classes - 1, left) if classes else int(left == 0)


def possible_counts(
    least: Int[Tensor, "classes"], batch_size: int, among: Int[Tensor, "some"] | None = None
) -> Iterator[Int[Tensor, "classes"]]:
    """All of them, each once: `number_possible` vectors."""
    if not number_possible(least, batch_size, among):
        return
    classes = range(len(least)) if among is None else among.tolist()
    for chosen in combinations_with_replacement(classes, batch_size - int(least.sum())):
        yield least + torch.bincount(torch.tensor(chosen, dtype=torch.long), minlength=len(least))


def nearest_possible(
    counts: Float[Tensor, "classes"] | Int[Tensor, "classes"],
    least: Int[Tensor, "classes"],
    batch_size: int,
    among: Int[Tensor, "some"] | None = None,
) -> Int[Tensor, "classes"]:
    """The possible counts nearest to real-valued ones: what is left goes to the largest shortfalls.

    Where none are possible, `counts` rounded.
    """
    left = batch_size - int(least.sum())
    if left < 0:
        return largest_remainder(counts.double(), batch_size)
    if among is None or not len(among):
        return least + largest_remainder(counts.double().cpu() - least, left)
    found = least.clone()
    found[among] += largest_remainder((counts.double().cpu() - least)[among], left)
    return found


def whole_counts(
    precision: Float[Tensor, "classes classes"],
    centre: Float[Tensor, "classes"],
    least: Int[Tensor, "classes"],
    total: int,
) -> Int[Tensor, "classes"]:
    """Counts of the least (n - centre)ᵀ precision (n - centre) that moving one label to another class cannot lower.

    They sum to `total` and are at least `least`, which must leave some. From the nearest possible counts, by the move
    that lowers it most, again and again: the minimum itself mostly, though nothing guarantees it.
    """
    precision, centre, least = precision.double().cpu(), centre.double().cpu(), least.cpu()
    counts = nearest_possible(centre, least, total)
    curvature = precision.diagonal()[:, None] + precision.diagonal()[None] - 2.0 * precision
    rounding = 1e-9 * float(curvature.max())
    while True:
        slope = precision @ (counts - centre)
        change = 2.0 * (slope[None] - slope[:, None]) + curvature  # [from, to]
        change[counts <= least] = torch.inf
        change.fill_diagonal_(torch.inf)
        best = int(change.argmin())
        if float(change.flatten()[best]) >= -rounding:
            return counts
        counts[best // len(counts)] -= 1
        counts[best % len(counts)] += 1
