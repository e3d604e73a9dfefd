"""The features of each possible counts of a batch, as far as they are needed to tell the counts apart."""

from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attacks.label.head.solver import FIRST, LONG, ROUNDS_OF_ONE, number_of_starts, solve_rows
from attacks.label.head.system import HeadSystem

CLEAR = 10.0
"""Times the tolerance: residuals below explain the gradient, or nearly."""
CHUNK = 16
"""Counts that are solved at once."""
MOST_ROUNDS = 16
"""How often all possible counts are tried, at most, while none explains the gradient."""


@dataclass(frozen=True)
class Found:
    """One count vector with its solution.

    Attributes:
        least: the smallest contribution of an example to the gradient.
        share: of the starts that came to this solution.
    """

    counts: Int[Tensor, "classes"]
    labels: Int[Tensor, "batch"]
    features: Float[Tensor, "batch features"]
    residual: float
    least: float
    settled: bool
    share: float
    rows: Float[Tensor, "batch rank"]
    errors: Float[Tensor, "batch classes"]


@dataclass(frozen=True)
class Search:
    """The features of every candidate."""

    system: HeadSystem
    label_smoothing: float
    tolerance: float
    rng: torch.Generator

    def run(self, candidates: list[Int[Tensor, "classes"]]) -> tuple[Found, list[Found]]:
        """The one that explains the gradient best, and the others; fewer where two are seen to explain it."""
        starts = number_of_starts(int(candidates[0].sum()))
        rounds = ROUNDS_OF_ONE // (len(candidates) * int(candidates[0].sum()) ** 2)
        found = list[Found]()
        for number in range(max(1, min(MOST_ROUNDS, rounds))):
            before, found = found, list[Found]()
            for start in range(0, len(candidates), CHUNK):
                found += self.solved(candidates[start : start + CHUNK], starts, FIRST, every=len(candidates) > 1)
                if self.undecided(found):
                    break
            found = [_nearer(*pair, number) for pair in zip_longest(found, before)]
            best = min(found, key=lambda one: one.residual)
            if best.residual < self.tolerance:
                break
        if best.residual >= self.tolerance:
            again = self.solved([best.counts], 2 * starts, LONG, every=len(candidates) > 1)[0]
            best = _nearer(again, best, number + 1, 2)
        others = [one for one in found if one.counts is not best.counts]
        if best.residual < self.tolerance and not self.undecided([best, *others]):
            others = self.closer(best, others)
        return best, others

    def closer(self, best: Found, others: list[Found]) -> list[Found]:
        """Each of the others again from where `best` is, longer where it had not settled."""
        result, starts = list[Found](), 2 * number_of_starts(len(best.labels))
        for iterations, settled in ((FIRST, True), (LONG, False)):
            group = [one for one in others if one.settled == settled]
            for start in range(0, len(group), CHUNK):
                if self.undecided([best, *result]):
                    return result + group[start:]
                part = group[start : start + CHUNK]
                again = self.solved([one.counts for one in part], 1 if settled else starts, iterations, best)
                result += [
                    old if old.residual < new.residual and new.settled else new
                    for old, new in zip(part, again, strict=True)
                ]
        return result

    def undecided(self, found: list[Found]) -> bool:
        return sum(one.residual < CLEAR * self.tolerance for one in found) > 1

    def solved(
        self,
        group: list[Int[Tensor, "classes"]],
        starts: int,
        iterations: int,
        near: Found | None = None,
        every: bool = False,
    ) -> list[Found]:
        """The best solution of each; also from that of other counts, whose labels are exchanged."""
        classes = torch.arange(len(group[0]))
        labels = torch.stack([torch.repeat_interleave(classes, counts) for counts in group])
        first = None if near is None else torch.stack([near.rows[_matched(near.labels, one)] for one in labels])
        enough, given = 0.1 * self.tolerance, (self.system, labels, self.label_smoothing)
        solution = solve_rows(*given, starts, iterations, enough, self.rng, first, every)
        result = []
        for index, counts in enumerate(group):
            rows, errors = solution.rows[index], solution.errors[index]
            contribution = errors.norm(dim=1) * rows.norm(dim=1) / self.system.scale
            features = (rows @ self.system.basis)[:, :-1]
            left, share = float(solution.residual[index]), float(solution.share[index])
            settled, least = bool(solution.settled[index]), float(contribution.min())
            result.append(Found(counts, labels[index], features, left, least, settled, share, rows, errors))
        return result


def _nearer(new: Found | None, old: Found | None, before: int, now: int = 1) -> Found:
    """Of two solutions of the same counts, or of the one that there is.

    Args:
        before: rounds of starts, of which none came to a solution.
        now: rounds by whose starts the new one was found.
    """
    both = [one for one in (new, old) if one is not None]
    one = min(both, key=lambda one: one.residual)
    share = one.share * now / (before + now) if one is new else one.share
    return replace(one, share=share, settled=all(other.settled for other in both))


def _matched(labels: Int[Tensor, "batch"], wanted: Int[Tensor, "batch"]) -> list[int]:
    """For each wanted label an example that has it, while there are any; then one of those left over."""
    free = list(range(len(labels)))
    chosen: list[int | None] = []
    for label in wanted.tolist():
        same = next((one for one in free if int(labels[one]) == label), None)
        chosen.append(same)
        if same is not None:
            free.remove(same)
    return [free.pop() if one is None else one for one in chosen]
