"""Orders of rows against a paper's, and the sentence that says how they compare."""

import pytest

from experiments.reproduce.ranking import agreement, sentence, together


def test_the_same_order_and_its_reverse():
    assert agreement([1.0, 2.0, 3.0], [10.0, 11.0, 15.0]).tau == pytest.approx(1.0)
    found = agreement([3.0, 2.0, 1.0], [10.0, 11.0, 15.0])
    assert (found.tau, found.same, found.pairs) == (pytest.approx(-1.0), 0, 3)
    assert "reverse" in found.verdict


def test_pairs_that_the_paper_does_not_tell_apart_are_not_counted():
    found = agreement([1.0, 2.0, 3.0], [5.0, 5.0, 6.0])
    assert (found.same, found.pairs) == (2, 2)


def test_values_that_are_all_equal_have_no_order():
    found = agreement([1.0, 1.0], [1.0, 2.0])
    assert found.tau is None
    assert found.verdict == "the order cannot be told"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([1.0, 2.0, 3.0, 4.0], "the order agrees with the paper's"),
        ([1.0, 3.0, 4.0, 2.0], "the order agrees with the paper's in part"),
        ([2.0, 4.0, 1.0, 3.0], "the order is not the paper's"),
        ([4.0, 3.0, 1.0, 2.0], "the order is rather the reverse of the paper's"),
    ],
)
def test_verdicts(ours, verdict):
    assert agreement(ours, [1.0, 2.0, 3.0, 4.0]).verdict == verdict


def test_rows_must_be_the_same():
    with pytest.raises(ValueError, match="2 values beside 3"):
        agreement([1.0, 2.0], [1.0, 2.0, 3.0])


def test_columns_of_one_measure_are_told_together():
    found = together([agreement([1.0, 2.0], [1.0, 2.0]), agreement([2.0, 1.0], [1.0, 2.0])])
    assert (found.tau, found.same, found.pairs) == (0.0, 1, 2)


def test_the_sentence():
    said = sentence("Table 3, top-1", [([41.0, 42.0, 40.0], [80.0, 81.0, 79.0])])
    assert said == (
        "Table 3, top-1: the order agrees with the paper's. 3 of 3 pairs stand as in the paper (Kendall's τ 1.00); "
        "values go from 40.0 to 42.0 here, from 79.0 to 81.0 there."
    )
    assert "too few" in sentence("Table 8, 1D", [([1.0], [2.0])])
