"""What chance may do to shares: whether one is smaller than another by more, and the error of an accuracy."""

from collections.abc import Iterator, Sequence
from math import hypot, sqrt
from statistics import fmean, stdev

from scipy.special import ndtr, stdtrit

CHANCE = 0.025
"""One-sided; a smaller probability is not put down to chance."""

ERRORS = 2.0
"""Standard errors of a normal figure within which it counts as chance: about 95 % of chance lies there."""


def accuracy_error(accuracies: Sequence[float], test_pictures: int | None) -> float | None:
    """The standard error of their mean, in [0, 1]: that of so many test pictures, or that over the seeds if larger.

    Seeds share their test pictures at worst, so they count once. None where neither is known.

    Args:
        accuracies: one for each seed.
    """
    return max((error for error, _ in _errors(accuracies, test_pictures)), default=None)


def accuracy_reach(accuracies: Sequence[float], test_pictures: int | None) -> float | None:
    """How far chance may have moved their mean: `ERRORS` standard errors, or what is that for so few seeds.

    Over k seeds it is Student's t with k - 1 degrees of freedom: 14 standard errors for two seeds, 4.5 for three.
    """
    return max((error * times for error, times in _errors(accuracies, test_pictures)), default=None)


def only_guessed(accuracies: Sequence[float], test_pictures: int | None, guess: float | None) -> bool:
    """Whether chance explains what they lie above that of a guess; False where that is not known.

    Each seed by its own test pictures; their mean, by how far they lie apart, where those are not known. Student's t of
    two good models that differ would reach down to the guess.
    """
    if guess is None or not accuracies:
        return False
    each = [accuracy_reach([one], test_pictures) for one in accuracies]
    known = [one - guess <= reach for one, reach in zip(accuracies, each, strict=True) if reach is not None]
    if known:
        return all(known)
    reach = accuracy_reach(accuracies, None)
    return reach is not None and fmean(accuracies) - guess <= reach


def accuracy_span(accuracies: Sequence[tuple[float, float | None]]) -> tuple[float, float]:
    """Ends of an axis for these (accuracy, standard error), in [0, 1], on which chance does not look like a difference.

    It shows `ERRORS` standard errors to either side of each; all from 0 to 1 where one has no known error.
    """
    if any(error is None for _, error in accuracies):
        return 0.0, 1.0
    low = min(accuracy - ERRORS * (error or 0.0) for accuracy, error in accuracies)
    high = max(accuracy + ERRORS * (error or 0.0) for accuracy, error in accuracies)
    return max(low, 0.0), min(high, 1.0)


def chance_between(reach: float | None, other: float | None) -> float | None:
    """The smallest difference that chance does not explain, of two shares that it moves so far; at most all of it, 1.

    Student's t of two seeds that lie far apart goes beyond, where no two shares are.
    """
    return None if reach is None or other is None else min(hypot(reach, other), 1.0)


def _errors(accuracies: Sequence[float], test_images: int | None) -> Iterator[tuple[float, float]]:
    """(standard error, how many of them chance may take) for each that is known."""
    seeds = len(accuracies)
    if seeds and test_images:
        # Agresti and Coull: two more right and two more wrong, or an accuracy of 0 or 1 would be sure.
        n = test_images + 4
        p = (fmean(accuracies) * test_images + 2) / n
        yield sqrt(p * (1 - p) / n), ERRORS
    if seeds > 1:
        yield stdev(accuracies) / sqrt(seeds), float(stdtrit(seeds - 1, ndtr(ERRORS)))


def clearly_fewer(hits: int, of: int, other_hits: int, other: int) -> bool:
    """Whether `hits / of` lies below `other_hits / other` by more than chance: Fisher's exact test, one-sided.

    Pictures count as independent. Where both shares are of the same pictures this errs on the side of chance.
    """
    return _as_few(hits, of, other_hits, other) < CHANCE


def at_least_by_chance(hits: int, of: int, other_hits: int, other: int) -> float:
    """Probability of `hits` or more among `of`, were both shares the same: Fisher's exact test, one-sided."""
    return _as_few(other_hits, other, hits, of)


def leads_by_chance(leads: int, pairs: int) -> float:
    """Probability of as many of the pairs that differ in which the first leads, or more: sign test, one-sided."""
    from scipy.stats import binom

    return float(binom.sf(leads - 1, pairs, 0.5))


def _as_few(hits: int, of: int, other_hits: int, other: int) -> float:
    """Probability of at most `hits` among `of` drawn from all without replacement."""
    from scipy.stats import hypergeom

    return float(hypergeom.cdf(hits, of + other, hits + other_hits, of))
