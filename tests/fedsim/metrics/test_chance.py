"""What chance may do to shares, against whole numbers of draws, and to accuracies, against SciPy's statistics."""

from fractions import Fraction
from math import comb, hypot, sqrt

import pytest
from scipy import stats

from fedsim.metrics.chance import (
    CHANCE,
    accuracy_error,
    accuracy_reach,
    at_least_by_chance,
    chance_between,
    clearly_fewer,
    only_guessed,
)


def slow_as_few(hits: int, of: int, other_hits: int, other: int) -> float:
    """The draws with at most so many hits, of all draws of `of` from both, counted."""
    all_hits, misses = hits + other_hits, of + other - hits - other_hits
    draws = sum(comb(all_hits, k) * comb(misses, of - k) for k in range(hits + 1) if k <= of)
    return float(Fraction(draws, comb(of + other, of)))


@pytest.mark.parametrize("of", range(1, 8))
@pytest.mark.parametrize("other", [0, 1, 6, 40, 211])
def test_chance_is_the_share_of_all_draws(of: int, other: int) -> None:
    for hits in range(of + 1):
        for other_hits in {0, other // 3, other}:
            expected = slow_as_few(hits, of, other_hits, other)
            assert at_least_by_chance(other_hits, other, hits, of) == pytest.approx(expected, rel=1e-12, abs=1e-12)
            assert clearly_fewer(hits, of, other_hits, other) is (expected < CHANCE)


def test_shares_are_held_against_each_other_by_fishers_test() -> None:
    # Of 8 drawn from 8 + 8 with 8 hits: C(8,k)·C(8,8-k)/C(16,8); at most 1 has 65/12870, at most 2 has 849/12870.
    assert clearly_fewer(1, 8, 7, 8)
    assert not clearly_fewer(2, 8, 6, 8)
    assert not clearly_fewer(0, 1, 1, 1)
    assert not clearly_fewer(0, 0, 5, 5)
    assert not clearly_fewer(0, 0, 0, 0)
    assert clearly_fewer(9_000, 10_000, 9_500, 10_000)
    for hits in range(12):
        table = [[hits, 11 - hits], [9, 3]]
        assert clearly_fewer(hits, 11, 9, 12) is bool(stats.fisher_exact(table, "less").pvalue < CHANCE)


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 1.0])
def test_one_training_is_as_sure_as_its_test_pictures(accuracy: float) -> None:
    right, pictures = round(10 * accuracy), 10
    p = (right + 2) / (pictures + 4)  # Agresti and Coull's interval for 95 %, z rounded to 2 as they do
    assert accuracy_error([accuracy], pictures) == pytest.approx(sqrt(p * (1 - p) / 14))
    assert accuracy_reach([accuracy], pictures) == pytest.approx(2 * sqrt(p * (1 - p) / 14))
    assert accuracy_reach([accuracy], None) is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 200])
def test_few_seeds_tell_little(seeds: int) -> None:
    accuracies = [0.7 + 0.1 * (k % 2) for k in range(seeds)]
    error = stats.sem(accuracies)
    assert accuracy_error(accuracies, None) == pytest.approx(error)
    low, high = stats.t.interval(stats.norm.cdf(2) - stats.norm.cdf(-2), seeds - 1, scale=error)
    assert accuracy_reach(accuracies, None) == pytest.approx(high) == pytest.approx(-low)


def test_of_both_the_larger_counts_and_two_figures_add_up() -> None:
    alike = accuracy_reach([0.8, 0.8], 1000)
    assert alike == accuracy_reach([0.8], 1000)
    assert alike is not None
    assert chance_between(alike, 0.03) == pytest.approx(hypot(alike, 0.03))
    assert chance_between(alike, None) is None
    apart = accuracy_reach([0.53, 0.80], 359)
    assert apart > 1
    assert chance_between(apart, 0.03) == 1.0, "no two shares differ by more"


def test_two_good_models_that_differ_are_no_guess() -> None:
    for accuracies in ([0.430, 0.485], [0.40, 0.46]):
        reach = accuracy_reach(accuracies, 2_000)
        assert reach is not None
        assert sum(accuracies) / 2 - 0.1 < reach, "Student's t of two seeds reaches down to the guess"
        assert not only_guessed(accuracies, 2_000, 0.1)
    assert only_guessed([0.10, 0.11], 2_000, 0.1)
    assert not only_guessed([0.10, 0.20], 2_000, 0.1)
    assert only_guessed([0.40, 0.46], None, 0.1)
    assert not only_guessed([0.43], None, 0.1)
    assert not only_guessed([], 2_000, 0.1)
