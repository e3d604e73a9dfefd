"""What counts as broken, against an exact enumeration of chance."""

from fractions import Fraction
from math import comb

import pytest

from fedsim.report.level import by_chance, level
from fedsim.report.thresholds import bar, is_recognisable


def test_recognisable_is_above_twenty_and_above_the_guess():
    assert bar(None) == 20.0
    assert bar(11.0) == 20.0
    assert bar(24.2) == pytest.approx(25.2)
    assert is_recognisable(24.2, 11.0)
    assert not is_recognisable(24.2, 24.2)
    assert not is_recognisable(None, 11.0)


@pytest.mark.parametrize("images", [1, 2, 4, 20])
def test_chance_is_fishers_exact_test(images):
    for hits in range(images + 1):
        for guessed in range(images + 1):
            both = hits + guessed
            ways = sum(comb(images, k) * comb(images, both - k) for k in range(hits, images + 1) if both - k >= 0)
            assert by_chance(hits, guessed, images) == pytest.approx(float(Fraction(ways, comb(2 * images, both))))


@pytest.mark.parametrize(("leads", "pairs"), [(0, 0), (0, 3), (5, 6), (6, 6), (9, 10)])
def test_where_both_sides_exclude_each_other_the_sign_test_bounds_chance(leads, pairs):
    sign = sum(comb(pairs, k) for k in range(leads, pairs + 1)) / 2**pairs
    assert by_chance(leads, pairs - leads, 10, (leads, pairs)) == pytest.approx(
        max(sign, by_chance(leads, pairs - leads, 10))
    )
    assert level(certified=0, recognisable=5, guessed=1, independent=6, ended=1) == "broken"
    assert level(certified=0, recognisable=5, guessed=1, independent=6, ended=1, pairs=(5, 6)) == "open"


def test_a_certificate_breaks_and_few_recognisable_images_do_not():
    assert level(certified=1, recognisable=1, guessed=0, independent=1, ended=1) == "broken"
    assert level(certified=0, recognisable=1, guessed=0, independent=20, ended=1) == "open"
    assert level(certified=0, recognisable=3, guessed=0, independent=3, ended=1) == "open"
    assert level(certified=0, recognisable=4, guessed=0, independent=4, ended=1) == "broken"
    assert level(certified=0, recognisable=20, guessed=20, independent=20, ended=1) == "open"


def test_nothing_that_ended_is_not_tested():
    assert level(certified=0, recognisable=0, guessed=0, independent=4, ended=0) == "not tested"
    assert level(certified=0, recognisable=0, guessed=0, independent=0, ended=2) == "not tested"
