"""What a matrix's page says first: nothing that chance, another batch or a missing attack would explain."""

import math
from dataclasses import replace

import pytest

from fedsim.report.matrix.cells import Matrix, MatrixCell, MatrixColumn, MatrixRow, RowState
from fedsim.report.matrix.verdict import difference, resolution, standard_error, verdicts, why_unplaced
from fedsim.report.matrix.wording import few
from fedsim.report.run.images.counts import Counts


def row(name, accuracies, leakage, batch=1, recognised=0.0, status="done", **values):
    one = isinstance(accuracies, float)
    cells = (MatrixCell("x", "initial", status, leakage=leakage, baseline=11.0, recognised=recognised, batch=batch),)
    counts = Counts(0, round(8 * recognised), 0, 8, 8) if status == "done" else Counts()
    return MatrixRow(name, accuracies=(accuracies,) if one else accuracies, cells=cells, **{"counts": counts, **values})


def matrix(*rows, test_pictures=359):
    return Matrix("m", (), (MatrixColumn("x", "", ""),), ("initial",), rows, test_pictures)


NONE = row("none", 0.908, 60.0, recognised=1.0, defended=False)


def test_the_standard_error_is_that_of_the_test_set_or_of_the_seeds_if_larger():
    single, seeds = row("a", 0.9, 11.0), row("b", (0.7, 0.9, 0.8), 11.0)
    of_the_set = pytest.approx(math.sqrt(362 * 42 / 404**3))  # 360 right of 400, and two more of either kind
    assert standard_error(single, 400) == of_the_set
    assert standard_error(single, None) is None
    assert standard_error(seeds, None) == pytest.approx(0.1 / math.sqrt(3))
    assert standard_error(seeds, 400) == pytest.approx(0.1 / math.sqrt(3))
    assert standard_error(row("c", (0.9, 0.9), 11.0), 400) == of_the_set
    assert resolution(single, single, 400) == pytest.approx(2 * math.sqrt(2 * 362 * 42 / 404**3))
    assert resolution(single, single, None) is None
    assert resolution(single, seeds, 400) > 4 * 0.1 / math.sqrt(3)  # three seeds tell less than normal figures do


def test_a_difference_that_chance_explains_is_no_gain():
    """93.0 % against 90.8 % on 359 pictures."""
    noise = row("noise", 0.930, 11.0)
    (told,) = verdicts(matrix(NONE, noise))
    assert "most accurate is noise with 93.0 %, against 90.8 % without a defense: no more than chance" in told
    assert "explains (± 4.2 points" in told
    (told,) = verdicts(matrix(NONE, noise, test_pictures=35900))
    assert "+2.2 points (± 0.4 points" in told
    assert "explains" not in told
    (told,) = verdicts(
        matrix(row("none", (0.87, 0.94), 60.0, recognised=1.0, defended=False), noise, test_pictures=10**6)
    )
    assert "no more than chance explains" in told
    (told,) = verdicts(matrix(NONE, noise, test_pictures=None))
    assert "points" not in told


def test_rows_that_are_as_accurate_within_the_error_are_counted():
    a, b, c = ((mean - 0.01, mean, mean + 0.01) for mean in (0.91, 0.90, 0.5))
    (told,) = verdicts(matrix(NONE, row("a", a, 11.0), row("b", b, 11.0), row("c", c, 11.0)))
    assert "Open: 3 of 3 defenses (recognisable images: a 0 of 8; b 0 of 8; c 0 of 8)" in told
    assert "a with 91.0 % (1 other as accurate, as far as chance lets one tell)" in told


@pytest.mark.parametrize(("seeds", "few"), [(1, "1 seed is"), (2, "2 seeds are"), (3, "")])
def test_too_few_seeds_are_not_said_to_be_alike(seeds, few):
    """Student's t of two seeds is 14 standard errors: nearly all accuracies would be alike."""
    a, b = ((0.72, 0.92, 0.82)[:seeds], (0.60, 0.80, 0.70)[:seeds])
    rows = (row("none", a, 60.0, recognised=1.0, defended=False), row("a", a, 11.0), row("b", b, 11.0))
    (told,) = verdicts(matrix(*rows, test_pictures=40))
    alike = f"may be as accurate: {few} too few to tell" if few else "as accurate, as far as chance lets one tell"
    assert f"(1 other {alike})" in told
    assert (f"points; {few} too few to tell)." if few else " points).") in told


def test_each_size_of_an_update_has_a_verdict_of_its_own_and_no_undefended_row_wins():
    pairs = row("none_batch_2", 0.93, 19.2, 2, recognised=0.25, defended=False)
    told = verdicts(matrix(NONE, row("noise", 0.8, 11.0), pairs, row("mixup", 0.85, 11.5, 2)))
    assert len(told) == 2
    assert told[0].startswith(
        "Updates of 1 image.\nOpen: 1 of 1 defense (recognisable images: noise 0 of 8): none is certified; another"
    )
    assert (
        "Without a defense: broken, 8 of 8 recognisable, without the update 0 of 8, 0 certified; x reaches ≥ 60 dB"
        in told[0]
    )
    assert "noise with 80.0 %, against 90.8 % without a defense: -10.8 points" in told[0]
    assert told[1].startswith("Updates of 2 images.\n")
    assert "mixup with 85.0 %, against 93.0 %" in told[1]
    weak = "open, 2 of 8 recognisable, without the update 0 of 8, 0 certified; x reaches 19.2 dB on average."
    assert f"Without a defense: {weak} As the model without a defense is open itself, these attacks" in told[1]
    (alone,) = verdicts(matrix(row("none_batch_4", 0.9, 12.0, 4, defended=False)))
    assert alone.startswith("Updates of 4 images.\nWithout a defense: open, 0 of 8 recognisable")


def test_what_is_broken_is_told_with_its_counts_and_so_is_what_is_open():
    """The mean does not count: one certified image is enough, and so are more than the guess makes by chance."""
    leaky = row("leaky", 0.95, 14.0, counts=Counts(1, 1, 0, 8, 8))
    half = row("half", 0.94, 21.0, counts=Counts(0, 5, 0, 8, 8))
    pale = row("pale", 0.93, 24.0, counts=Counts(0, 5, 4, 8, 8))
    (told,) = verdicts(matrix(NONE, leaky, half, pale))
    assert "Broken: 2 of 3 defenses (recognisable images: leaky 1 of 8, 1 certified; half 5 of 8).\n" in told
    assert "Open: 1 of 3 defenses (recognisable images: pale 5 of 8, without the update 4): none is certified, " in told
    assert "those that are recognisable are too few for the level broken; another attack" in told
    assert "the most accurate is pale" in told


def test_baselines_that_did_not_end_are_why_a_row_is_open():
    counts = Counts(0, 20, 0, 20, 20, unguessed=20, updates=20, leaking=20, guessing=20)
    unknown = row("noise", 0.9, 24.0, counts=counts)
    (told,) = verdicts(matrix(NONE, unknown))
    assert "images: noise 20 of 20, without the update 0 and unknown of 20 more): none is certified, no" in told
    assert "certified, no baseline ended on 20 of those that are recognisable; another attack" in told
    (told,) = verdicts(matrix(NONE, unknown, row("pale", 0.93, 24.0, counts=Counts(0, 5, 4, 8, 8))))
    assert "are too few for the level broken, no baseline ended on 20 of those that are recognisable; another" in told


def test_nobody_is_called_safe():
    for counts in (Counts(), Counts(0, 0, 0, 8, 8), Counts(8, 8, 0, 8, 8)):
        told = " ".join(verdicts(matrix(NONE, row("noise", 0.9, 11.0, counts=counts)))).lower()
        assert not any(word in told for word in ("safe", "proven", "no picture", "no image", "protected"))


def test_a_row_that_is_unknown_or_of_two_things_is_no_answer():
    crashes = row("crashes", 0.95, 11.0, status="failed")
    gate = row("gate", 0.96, 11.0, mismatch="trained with 16, audited with 1 images")
    (told,) = verdicts(matrix(NONE, crashes, gate, row("noise", 0.8, 11.0)))
    assert "Not tested: 1 of 3 defenses (crashes)." in told
    assert "noise with 80.0 %" in told
    waiting = row("waits", 0.9, None, status="pending")
    assert verdicts(matrix(waiting)) == ["Nothing has been measured yet."]


def test_the_reason_why_a_row_has_no_place():
    stopped = MatrixRow("r", audits={"initial": RowState("refused", "sums alone")})
    assert why_unplaced(stopped) == "audit, initial: refused, sums alone"
    cells = (MatrixCell("x", "initial", "failed", "boom", done=1, failed=3),)
    assert why_unplaced(MatrixRow("r", accuracies=(0.9,), cells=cells)) == "x (initial) failed on 3 of 4: boom"
    assert why_unplaced(row("gate", 0.9, 11.0, mismatch="of two things")) == "of two things"
    assert why_unplaced(MatrixRow("r", accuracies=(0.9,))) == "not finished yet"
    untested = row("gate", 0.9, 11.0, status="refused", counts=Counts())
    assert why_unplaced(untested) == "not tested: no attack came to an end with an image"
    assert why_unplaced(NONE) == ""


def test_a_difference_is_to_the_undefended_row_of_the_same_size():
    pairs = row("none_batch_2", 0.5, 19.2, 2, defended=False)
    mixup, instahide = row("mixup", 0.6, 11.5, 2), row("instahide", 0.6, 11.5, 4)
    whole = matrix(NONE, pairs, mixup, instahide)
    assert difference(whole, mixup) == "+10.0 ± 7.3"
    assert difference(whole, instahide) == ""
    assert difference(whole, NONE) == ""
    longer = row("longer", 0.6, 11.5, 2, own=("num_rounds=400",))
    assert difference(matrix(NONE, pairs, longer), longer) == "", "trained otherwise"
    alike = replace(pairs, name="none_longer", own=longer.own)
    assert difference(matrix(NONE, pairs, alike, longer), longer) == "+10.0 ± 7.3"
    before = replace(mixup, own=None)
    assert difference(matrix(NONE, pairs, before), before) == "", "an earlier version did not say how it was trained"
    crashed = row("none", 0.5, None, 2, status="failed", defended=False)
    assert difference(matrix(crashed, mixup), mixup) == "+10.0 ± 7.3"  # its accuracy is known all the same


def test_baselines_alone_are_told_as_such():
    cells = (MatrixCell("x", "initial", "done", leakage=20.0, baseline=11.0, recognised=1.0, batch=1, blind=True),)
    alone = MatrixRow("none", accuracies=(0.9,), cells=cells, defended=False)
    blind = Matrix("m", (), (MatrixColumn("x", "", "", blind=True),), ("initial",), (alone,), 359)
    assert verdicts(blind) == ["No attack was asked for, baselines alone."]
    assert why_unplaced(alone) == "baselines alone"


def test_what_came_out_as_the_model_saw_it_counts():
    cells = (MatrixCell("x", "initial", "done", leakage=8.0, baseline=11.0, recognised=0.0, batch=1, as_seen=8),)
    ats = MatrixRow("ats", accuracies=(0.95,), cells=cells, counts=Counts(0, 8, 0, 8, 8))
    (told,) = verdicts(matrix(NONE, ats, row("noise", 0.8, 11.0)))
    assert told.startswith("Updates of 1 image.\nBroken: 1 of 2 defenses (recognisable images: ats 8 of 8).")
    assert "the most accurate is noise" in told
    assert "Under ats images came out as the model saw them, transformed: look at them" in told
    assert "as the model saw them" in why_unplaced(ats)
    assert not ats.placed
    other = MatrixCell("y", "initial", "done", leakage=12.0, baseline=11.0, recognised=0.125, batch=1, as_seen=0)
    assert not replace(ats, cells=(cells[0], other)).placed  # 12 dB are not what leaks
    assert replace(ats, cells=(cells[0], replace(other, leakage=40.0))).placed


def test_what_came_out_is_told_of_the_state_in_which_it_did():
    first = MatrixCell("x", "initial", "done", leakage=8.0, baseline=11.0, recognised=0.0, batch=1, as_seen=8)
    last = replace(first, state="trained", leakage=12.5, as_seen=0)
    ats = MatrixRow("ats", accuracies=(0.95,), cells=(first, last))
    assert (ats.seen_in("initial"), ats.seen_in("trained")) == (first, None)
    assert not ats.placed


def test_a_matrix_of_an_earlier_version_says_that_it_did_not_count():
    cells = (MatrixCell("x", "initial", "done", leakage=8.0, baseline=11.0, recognised=0.0, batch=1, rebuilt=8),)
    old = MatrixRow("ats", accuracies=(0.95,), cells=cells)
    assert old.level is None
    recorded = matrix(replace(old, counts=Counts(0, 4, 0, 4, 4, updates=4, leaking=4))).to_dict()
    assert Matrix.from_dict(recorded).rows[0].level == "broken"
    del recorded["rows"][0]["counts"]["ahead"]
    assert Matrix.from_dict(recorded).rows[0].level is None, "it did not count which updates lead"
    told = verdicts(matrix(replace(NONE, counts=None), old))
    assert told == ["An earlier version counted less: call fedsim-matrix again here, and the levels are counted anew."]
    assert len(verdicts(matrix(NONE, replace(old, counts=Counts(0, 0, 0, 8, 8))))) == 1


def test_few_images_are_told():
    few_of_both = matrix(row("a", 0.9, 11.0), test_pictures=4)
    assert few(few_of_both) == [
        ("Few test images", "4, each 25.0 % of the accuracy"),
        ("Few observed images", "8, each 12.5 % of all"),
    ]
    many = row("a", 0.9, 11.0, counts=Counts(0, 0, 0, 20, 20))
    assert few(matrix(many, test_pictures=100)) == []
    refused = row("b", 0.9, 11.0, counts=Counts(0, 0, 0, 3, 3, refused=17))
    assert few(matrix(many, refused)) == [("Few observed images", "3, each 33.3 % of all in b")]
    both = few(matrix(many, refused, row("c", 0.9, 11.0)))
    assert both == [("Few observed images", "3 to 8, each up to 33.3 % of all in b and c")]
    assert few(matrix(MatrixRow("none"), test_pictures=None)) == []
