"""Whether one share is smaller than another by more than chance."""

from math import exp, lgamma

CHANCE = 0.025
"""One-sided; a smaller probability is not put down to chance."""


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
