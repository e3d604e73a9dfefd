"""Rows of a matrix: what counts as leaked, and which of them nothing dominates."""

import math
from itertools import product

import pytest
import torch

from fedsim.report.matrix.cells import MatrixCell, MatrixRow, RowState, pareto_front, with_front
from fedsim.report.run.images.counts import Counts


def cell(leakage, attack="x", state="initial", status="done", **values):
    return MatrixCell(attack, state, status, leakage=leakage, baseline=11.0, **values)


def test_the_front_is_what_no_other_point_dominates():
    rng = torch.Generator().manual_seed(0)
    for size in (1, 2, 5, 40):
        points = [tuple(pair) for pair in torch.randint(0, 8, (size, 2), generator=rng).double().tolist()]
        dominated = {
            (a, leak)
            for (a, leak), (b, other) in product(points, points)
            if b >= a and other <= leak and (b > a or other < leak)
        }
        assert pareto_front(points) == set(points) - dominated


def test_rows_that_were_not_measured_are_never_on_the_front():
    rows = with_front(
        [
            MatrixRow("measured", accuracies=(0.5,), cells=(cell(20.0),)),
            MatrixRow("worse", accuracies=(0.4,), cells=(cell(20.0),)),
            MatrixRow("untrained", cells=(cell(20.0),)),
            MatrixRow("unaudited", accuracies=(0.9,)),
            MatrixRow(
                "of two things", accuracies=(0.9,), cells=(cell(11.0),), mismatch="trained with 16, audited with 1"
            ),
        ]
    )
    assert [row.pareto for row in rows] == [True, False, False, False, False]


def test_no_attack_leaks_less_than_the_guess_that_it_could_submit_instead():
    """Attacks that do worse than the guess earn no place on the front."""
    bad, worse = (
        MatrixRow("bad", accuracies=(0.9,), cells=(cell(9.8),)),
        MatrixRow("worse", accuracies=(0.8,), cells=(cell(8.5),)),
    )
    refuses = MatrixRow("refuses", accuracies=(0.95,), cells=(cell(None, status="refused"),))
    assert [row.leakage for row in (bad, worse, refuses)] == [11.0, 11.0, 11.0]
    assert bad.leakage_in("initial") == 11.0
    assert bad.strongest is None
    assert bad.gain == 0.0
    assert [row.pareto for row in with_front([bad, worse, refuses])] == [False, False, True]


def test_most_labels_are_those_of_all_updates():
    """An attack that names one label rightly and refuses the other updates recovers one of twenty."""
    once = cell(20.0, "once", done=1, refused=19, labelled=1, label_share=1.0)
    often = cell(None, "often", done=20, labelled=20, label_share=0.95)
    blind = cell(None, "blind", done=20, labelled=20, label_share=1.0, blind=True)
    assert MatrixRow("a", cells=(once, blind, often)).most_labels == often
    assert MatrixRow("a", cells=(blind, cell(20.0))).most_labels is None


def test_a_row_that_was_not_tested_leaks_no_number():
    """The guess alone is no leakage of a defense."""
    refused = MatrixRow("refused", accuracies=(0.9,), cells=(cell(None, status="refused"),), counts=Counts(refused=8))
    assert (refused.level, refused.leakage, refused.gain, refused.placed) == ("not tested", None, None, False)
    assert not with_front([refused])[0].pareto


@pytest.mark.parametrize("status", ["failed", "pending"])
def test_a_row_of_which_an_attack_is_missing_is_unknown(status):
    """Else a crash of the strongest attack would protect."""
    missing = MatrixRow("missing", accuracies=(0.9,), cells=(cell(60.0, "strong", status=status), cell(11.5, "weak")))
    whole = MatrixRow("whole", accuracies=(0.8,), cells=(cell(30.0, "strong"), cell(11.5, "weak")))
    assert (missing.leakage, missing.recognised, missing.placed) == (None, None, False)
    assert [row.pareto for row in with_front([missing, whole])] == [False, True]


def test_a_row_of_which_an_audit_is_missing_is_unknown():
    audits = {"initial": RowState("done"), "trained": RowState("failed", "boom")}
    row = MatrixRow("r", cells=(cell(20.0),), audits=audits)
    assert (row.leakage, row.leakage_in("initial"), row.leakage_in("trained")) == (None, 20.0, None)


def test_a_row_that_no_attack_gets_into_leaks_the_guess():
    labels = cell(None, "labels", label_share=1.0)
    assert MatrixRow("r", cells=(labels, cell(None, status="refused"))).leakage == 11.0
    assert MatrixRow("r").leakage is None


def test_a_baseline_is_shown_and_counts_for_nothing():
    blind = cell(25.0, "samples", recognised=1.0, blind=True)
    row = MatrixRow("r", accuracies=(0.9,), cells=(blind, cell(15.0, recognised=0.0)))
    assert row.strongest is not None
    assert (row.strongest.attack, row.leakage, row.recognised) == ("x", 15.0, 0.0)
    assert MatrixRow("failed", cells=(cell(None, "samples", status="failed", blind=True), cell(15.0))).leakage == 15.0
    alone = MatrixRow("alone", accuracies=(0.9,), cells=(blind,))
    assert (alone.leakage, alone.placed) == (None, False)


def test_rows_whose_updates_hold_other_numbers_of_pictures_do_not_compete():
    one = MatrixRow("one", accuracies=(0.9,), cells=(cell(40.0, batch=1),))
    two = MatrixRow("two", accuracies=(0.95,), cells=(cell(12.0, batch=2), cell(None, "y", status="refused")))
    eight = MatrixRow("eight", accuracies=(0.99,), cells=(cell(11.0, batch=8),))
    assert [row.batch for row in (one, two, eight)] == [1, 2, 8]
    assert [row.pareto for row in with_front([one, two, eight])] == [True, True, True]


def test_an_undefended_row_is_never_on_the_front_and_dominates_all_the_same():
    none = MatrixRow("none", defended=False, accuracies=(0.9,), cells=(cell(60.0, batch=1),))
    none_2 = MatrixRow("none_batch_2", defended=False, accuracies=(0.9,), cells=(cell(19.0, batch=2),))
    assert [row.pareto for row in with_front([none, none_2])] == [False, False]
    useless = MatrixRow("useless", accuracies=(0.8,), cells=(cell(60.0, batch=1),))
    useful = MatrixRow("useful", accuracies=(0.8,), cells=(cell(30.0, batch=1),))
    assert [row.pareto for row in with_front([none, none_2, useless, useful])] == [False, False, False, True]


def test_the_strongest_is_taken_over_both_states():
    cells = (cell(20.0, "x"), cell(30.0, "y", "trained"))
    row = MatrixRow("r", accuracies=(0.5, 0.7), cells=cells)
    assert row.strongest == cells[1]
    assert row.strongest_in("initial") == cells[0]
    assert (row.leakage, row.leakage_in("initial")) == (30.0, 20.0)
    assert row.accuracy == pytest.approx(0.6)
    assert row.spread == pytest.approx(math.sqrt(0.02))
