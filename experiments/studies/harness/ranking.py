"""Whether rows stand in a paper's order: Kendall's rank correlation, and a sentence that says it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import kendalltau

Compared = tuple[Sequence[float], Sequence[float]]
"""Values of ours and of the paper's, of the same rows."""

AGREES = 0.7
"""Least rank correlation of an order that agrees; one that is no chance but weaker agrees in part."""

CHANCE = 0.05
"""p above which an order is one that chance may give."""

FEWEST = 5
"""Pairs of rows below which no order is told."""


@dataclass(frozen=True)
class Agreement:
    """How far two orders of the same rows agree.

    Attributes:
        tau: Kendall's τ-b; None where one side has all its values equal, or there is but one row.
        p: of a rank correlation that large by chance, two-sided; rows are taken for independent.
        pairs: of rows that the paper tells apart.
        same: of those, the pairs that stand the same way round here.
    """

    tau: float | None
    p: float | None
    same: int
    pairs: int

    @property
    def verdict(self) -> str:
        if self.pairs < FEWEST:
            return "too few to tell an order"
        if self.tau is None or self.p is None:
            return "the order cannot be told"
        if self.p >= CHANCE:
            return "the order is one that chance may give"
        if self.tau < 0:
            return "the order is rather the reverse of the paper's"
        return "the order agrees with the paper's" + ("" if self.tau >= AGREES else " in part")


def agreement(ours: Sequence[float], paper: Sequence[float]) -> Agreement:
    """How far the two order the same rows alike.

    Raises:
        ValueError: they are not of the same rows.
    """
    if len(ours) != len(paper):
        raise ValueError(f"{len(ours)} values beside {len(paper)} of the paper")
    distinct = [(a, b) for a, b in combinations(range(len(paper)), 2) if paper[a] != paper[b]]
    same = sum((ours[a] - ours[b]) * (paper[a] - paper[b]) > 0 for a, b in distinct)
    if len(set(ours)) < 2 or len(set(paper)) < 2:
        return Agreement(None, None, same, len(distinct))
    found = kendalltau(ours, paper)
    return Agreement(float(found.statistic), float(found.pvalue), same, len(distinct))


def together(found: Sequence[Agreement]) -> Agreement:
    """The weakest agreement of columns that depend on each other, whose pairs count once however many columns."""
    return min(found, key=lambda one: (one.tau is not None, one.tau or 0.0, one.same))


def sentence(what: str, columns: Sequence[Compared], form: str = ".1f") -> str:
    """How the order of the rows compares, and how far both spread.

    Args:
        columns: our values and the paper's, of the same rows; several are no independent ones.
        form: of a number.
    """
    if len(columns[0][0]) < 2:
        return f"{what}: too few variants were trained to compare their order."
    found = together([agreement(ours, paper) for ours, paper in columns])
    tau = "" if found.tau is None or found.p is None else f" (Kendall's τ {found.tau:.2f}, p {found.p:.2g})"
    where = f" in the column of {len(columns)} that agrees least" if len(columns) > 1 else ""
    here, there = (_range([value for column in columns for value in column[side]], form) for side in (0, 1))
    pairs = f"{found.same} of {found.pairs} pairs stand as in the paper{where}{tau}"
    return f"{what}: {found.verdict}. {pairs}; values go from {here} here, from {there} there."


def _range(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}"
