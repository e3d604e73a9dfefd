"""Whether rows stand in a paper's order: Kendall's rank correlation, and a sentence that says it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import kendalltau

Compared = tuple[Sequence[float], Sequence[float]]
"""Values of ours and of the paper's, of the same rows."""

AGREES, IN_PART = 0.7, 0.3
"""Least rank correlations of an order that agrees, and of one that agrees in part."""


@dataclass(frozen=True)
class Agreement:
    """Of two orders of the same rows.

    Attributes:
        tau: Kendall's τ-b; None where one side has all its values equal, or there is but one row.
        pairs: of rows that the paper tells apart.
        same: of those, the pairs that stand the same way round here.
    """

    tau: float | None
    same: int
    pairs: int

    @property
    def verdict(self) -> str:
        if self.tau is None:
            return "the order cannot be told"
        if self.tau >= AGREES:
            return "the order agrees with the paper's"
        if self.tau >= IN_PART:
            return "the order agrees with the paper's in part"
        return (
            "the order is not the paper's" if self.tau > -IN_PART else "the order is rather the reverse of the paper's"
        )


def agreement(ours: Sequence[float], paper: Sequence[float]) -> Agreement:
    """How far the two order the same rows alike.

    Raises:
        ValueError: they are not of the same rows.
    """
    if len(ours) != len(paper):
        raise ValueError(f"{len(ours)} values beside {len(paper)} of the paper")
    told = [(a, b) for a, b in combinations(range(len(paper)), 2) if paper[a] != paper[b]]
    same = sum((ours[a] - ours[b]) * (paper[a] - paper[b]) > 0 for a, b in told)
    if len(set(ours)) < 2 or len(set(paper)) < 2:
        return Agreement(None, same, len(told))
    return Agreement(float(kendalltau(ours, paper).statistic), same, len(told))


def together(found: Sequence[Agreement]) -> Agreement:
    """Of several columns of a table: pairs are counted within each, τ is the mean of theirs."""
    taus = [one.tau for one in found if one.tau is not None]
    tau = sum(taus) / len(taus) if taus else None
    return Agreement(tau, sum(one.same for one in found), sum(one.pairs for one in found))


def sentence(what: str, columns: Sequence[Compared], form: str = ".1f") -> str:
    """How the order of the rows compares, and how far both spread.

    Args:
        columns: our values and the paper's, of the same rows.
        form: of a number.
    """
    if len(columns[0][0]) < 2:
        return f"{what}: too few variants were trained to compare their order."
    found = together([agreement(ours, paper) for ours, paper in columns])
    tau = "" if found.tau is None else f" (Kendall's τ {found.tau:.2f})"
    here, there = (_range([value for column in columns for value in column[side]], form) for side in (0, 1))
    pairs = f"{found.same} of {found.pairs} pairs stand as in the paper{tau}"
    return f"{what}: {found.verdict}. {pairs}; values go from {here} here, from {there} there."


def _range(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}"
