"""Orders of rows against a paper's, and the sentence that says how they compare."""

import pytest

from experiments.studies.harness.ranking import agreement, sentence, together


def test_the_same_order_and_its_reverse():
    assert agreement([1.0, 2.0, 3.0], [10.0, 11.0, 15.0]).tau == pytest.approx(1.0)
    found = agreement([3.0, 2.0, 1.0], [10.0, 11.0, 15.0])
    assert (found.tau, found.same, found.pairs) == (pytest.approx(-1.0), 0, 3)


def test_pairs_that_the_paper_does_not_tell_apart_are_not_counted():
    found = agreement([1.0, 2.0, 3.0], [5.0, 5.0, 6.0])
    assert (found.same, found.pairs) == (2, 2)


def test_values_that_are_all_equal_have_no_order():
    found = agreement([1.0] * 4, [1.0, 2.0, 3.0, 4.0])
    assert found.tau is None
    assert found.verdict == "the order cannot be told"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "the order agrees with the paper's"),
        ([2, 1, 0, 4, 3, 5, 7, 6], "the order agrees with the paper's in part"),
        ([3, 0, 7, 1, 6, 2, 5, 4], "the order is one that chance may give"),
        ([7, 6, 5, 4, 3, 2, 1, 0], "the order is rather the reverse of the paper's"),
        ([0, 1, 2, 3], "the order is one that chance may give"),  # one of 24: p is 1/12
        ([0, 1, 2], "too few to tell an order"),
    ],
)
def test_verdicts(ours, verdict):
    assert agreement(ours, list(range(len(ours)))).verdict == verdict


def test_rows_must_be_the_same():
    with pytest.raises(ValueError, match="2 values beside 3"):
        agreement([1.0, 2.0], [1.0, 2.0, 3.0])


def test_columns_that_depend_on_each_other_are_no_further_pairs():
    same = agreement([1.0, 2.0], [1.0, 2.0])
    found = together([same] * 5)
    assert (found.tau, found.same, found.pairs, found.verdict) == (1.0, 1, 1, "too few to tell an order")
    found = together([same, agreement([2.0, 1.0], [1.0, 2.0])])
    assert (found.tau, found.same, found.pairs) == (-1.0, 0, 1)


def test_the_sentence():
    ours, paper = [41.0, 42.0, 40.0, 43.0, 44.0], [80.0, 81.0, 79.0, 82.0, 83.0]
    assert sentence("Table 3, top-1", [(ours, paper)]) == (
        "Table 3, top-1: the order agrees with the paper's. 10 of 10 pairs stand as in the paper (Kendall's τ 1.00, "
        "p 0.017); values go from 40.0 to 44.0 here, from 79.0 to 83.0 there."
    )
    assert "pairs stand as in the paper in the column of 2 that agrees least" in sentence("x", [(ours, paper)] * 2)
    assert "too few" in sentence("Table 8, 1D", [([1.0], [2.0])])
