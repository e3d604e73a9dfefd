"""What chance may do to shares: whether one is smaller than another by more, and the error of an accuracy."""

from collections.abc import Sequence
from math import exp, hypot, lgamma, sqrt
from statistics import fmean, stdev

CHANCE = 0.025
"""One-sided; a smaller probability is not put down to chance."""

ERRORS = 2.0
"""Standard errors of a difference within which it counts as chance: about 95 % of chance lies there."""


def accuracy_error(accuracies: Sequence[float], test_pictures: int | None) -> float | None:
    """The standard error of their mean p, in [0, 1]: √(p(1-p)/n) for n test pictures, or that over seeds if larger.

    Seeds share their test pictures at worst, so n is that of one. None where neither is known.

    Args:
        accuracies: one for each seed.
    """
    errors = []
    if accuracies and test_pictures:
        p = fmean(accuracies)
        errors.append(sqrt(p * (1 - p) / test_pictures))
    if len(accuracies) > 1:
        errors.append(stdev(accuracies) / sqrt(len(accuracies)))
    return max(errors, default=None)


def chance_between(error: float | None, other: float | None) -> float | None:
    """The smallest difference of two figures with these standard errors that chance does not explain."""
    return None if error is None or other is None else ERRORS * hypot(error, other)


def clearly_fewer(hits: int, of: int, other_hits: int, other: int) -> bool:
    """Whether `hits / of` lies below `other_hits / other` by more than chance: Fisher's exact test, one-sided.

    Pictures count as independent. Where both shares are of the same pictures this errs on the side of chance.
    """
    return _as_few(hits, of, other_hits, other) < CHANCE


def _as_few(hits: int, of: int, other_hits: int, other: int) -> float:
    """Probability of at most `hits` among `of` drawn from all without replacement."""
    total, all_hits = of + other, hits + other_hits
    whole = _log_choose(total, all_hits)
    least = max(0, all_hits - other)
    terms = (_log_choose(of, k) + _log_choose(other, all_hits - k) - whole for k in range(least, hits + 1))
    return sum(map(exp, terms))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
