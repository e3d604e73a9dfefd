"""Scores of recovered labels. They are multisets: the order in a batch cannot be known from a mean gradient."""

from collections import Counter
from collections.abc import Collection

from jaxtyping import Int
from torch import Tensor


def label_share(true: Int[Tensor, " batch"], recovered: Int[Tensor, " rebuilt"]) -> float:
    """Σ_c min(n̂_c, n_c) / B for the counts n of the true and n̂ of the recovered labels, in [0, 1]."""
    if len(true) == 0:
        raise ValueError("no labels to recover: the batch is empty")
    common = Counter(true.tolist()) & Counter(recovered.tolist())
    return common.total() / len(true)


def exact_batch(true: Int[Tensor, " batch"], recovered: Int[Tensor, " rebuilt"]) -> bool:
    """Whether every label was recovered with its multiplicity, and none too many."""
    return Counter(true.tolist()) == Counter(recovered.tolist())


def assign_labels(true: Int[Tensor, " batch"], recovered: Int[Tensor, " rebuilt"]) -> list[int | None]:
    """One recovered label per picture: its own while the count lasts, then the leftovers in order, then None."""
    left = Counter(recovered.tolist())
    assigned: list[int | None] = []
    for label in true.tolist():
        own = left[label] > 0
        left[label] -= own
        assigned.append(label if own else None)
    leftovers = iter(sorted(left.elements()))
    return [next(leftovers, None) if label is None else label for label in assigned]


def even_share(counts: Collection[int], classes: int, named: int | None = None) -> float:
    """The `label_share` that naming each class equally often is expected to have: a guess without the update.

    Of n labels each of the C classes is named ⌊n/C⌋ times, and n mod C of them, drawn at random, once more.

    Args:
        counts: how often each class is there, of those that are.
        named: n, as many as an attack names: rules that give a set name each class once; None: as many as there are.
    """
    batch = sum(counts)
    often, more = divmod(batch if named is None else named, classes)
    expected = sum(min(n, often) + more / classes * (n > often) for n in counts)
    return expected / batch
