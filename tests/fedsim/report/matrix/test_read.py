"""From the folders of a matrix's runs to its cells."""

import json
import shutil

import pytest

from fedsim.report.matrix.read import BASELINE, read_cells, read_counts, read_training
from fedsim.report.matrix.wording import cell_level, cell_story, cell_text
from fedsim.report.run.images.counts import Counts
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import summarise_attacks
from fedsim.report.run.verdict import verdict
from fedsim.report.thresholds import EXACT
from fedsim.storage.run_folder import UNCHANGED

GUESS = {"a": 12.0, "b": 10.0, "c": 8.0, "d": 14.0}


@pytest.fixture
def audit(tmp_path, records):
    """Write an audit's folder: a guess, and lines of (update, attack, images by name, other fields)."""

    def write(*lines, torn=""):
        rows = []
        for number, attack, images, other in lines:
            named = images.items() if isinstance(images, dict) else images
            pictures = [records.image(value, name, private_psnr=value) for name, value in named]
            rows.append(records.attack(0, number, *pictures, attack=attack, **{"certificate": {}, **other}))
        (tmp_path / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
        (tmp_path / BASELINE).write_text(json.dumps(GUESS))
        return tmp_path

    return write


def refused(reason="nothing shared"):
    return {"status": "refused", "reason": reason, "label_exact": None, "label_share": None, "seconds": 9.0}


def failed(reason="boom"):
    return {"status": "failed", "reason": reason, "label_exact": None, "label_share": None}


def test_a_cell_counts_all_pictures_and_none_for_more_than_exact(audit):
    folder = audit(
        (0, "x", {"a": 300.0}, {"seconds": 1.0}),
        (1, "x", {"b": 20.0}, {"seconds": 3.0, "label_exact": False, "label_share": 0.5}),
        (2, "x", {"c": None}, refused()),
        (3, "x", {"d": None}, refused()),
    )
    (cell,) = read_cells(folder, "initial", ["x"], 4)
    assert (cell.status, cell.done, cell.refused, cell.failed) == ("done", 2, 2, 0)
    assert (cell.pictures, cell.rebuilt, cell.batch) == (4, 2, 1)
    assert cell.private_psnr == pytest.approx((300 + 20) / 2)
    assert cell.leakage == pytest.approx((EXACT + 20 + GUESS["c"] + GUESS["d"]) / 4)
    assert cell.baseline == pytest.approx(11.0)
    assert cell.gain == pytest.approx(cell.leakage - 11.0)
    assert cell.recognised == pytest.approx(2 / 4)
    assert cell.label_exact == pytest.approx(0.5)
    assert cell.label_share == pytest.approx(0.75)
    assert (cell.labelled, cell.label_reach) == (2, pytest.approx(0.375))
    assert "75.0 % of the labels in 2 of 4 updates" in cell_story(cell)
    assert cell.seconds == pytest.approx(2.0)


def test_an_update_on_which_the_attack_failed_is_no_guess_and_the_cell_is_not_done(audit):
    folder = audit((0, "x", {"a": 150.0}, {}), (1, "x", {"b": None}, failed()), (2, "x", {"c": None}, refused()))
    (cell,) = read_cells(folder, "initial", ["x"], 3)
    assert (cell.status, cell.ended, cell.reason) == ("failed", False, "boom")
    assert (cell.done, cell.refused, cell.failed) == (1, 1, 1)
    assert cell.leakage == pytest.approx((EXACT + GUESS["c"]) / 2)
    assert (cell.pictures, cell.recognised) == (2, 0.5)
    assert (cell_text(cell), cell_level(cell)) == ("failed", "failed")
    assert "failed on 1 of 3; boom" in cell_story(cell)


def test_a_picture_that_was_seen_changed_several_times_counts_once_by_its_best(audit):
    folder = audit((0, "x", [("a", None), ("a", 300.0), ("a", None), ("b", 9.0), ("b", None)], {}))
    (cell,) = read_cells(folder, "initial", ["x"], 1)
    assert cell.counts == Counts(0, 1, 0, 2, 1, updates=1, leaking=1, ahead=1, apart=1)
    assert (cell.pictures, cell.rebuilt, cell.batch) == (2, 2, 2)
    assert cell.leakage == pytest.approx((EXACT + 9.0) / 2)
    assert cell.recognised == 0.5


def test_the_batch_is_what_one_update_holds(audit):
    folder = audit((0, "x", {"a": 9.0, "b": None, "c": 9.0}, {}), (1, "x", {"d": 9.0}, {}))
    cells = read_cells(folder, "initial", ["x", "later"], 2)
    assert [cell.batch for cell in cells] == [3, None]


def test_of_updates_of_several_sizes_labels_count_alike(audit):
    folder = audit(
        (0, "x", {"a": 9.0, "b": 9.0, "c": 9.0}, {"label_share": 1.0}), (1, "x", {"d": 9.0}, {"label_share": 0.0})
    )
    (cell,) = read_cells(folder, "initial", ["x"], 2)
    assert cell.label_share == pytest.approx(3 / 4)
    assert summarise_attacks(read_run(folder))[0].label_share == cell.label_share


def test_cells_without_pictures_say_why(audit):
    folder = audit(
        (0, "labels", {"a": None}, {}),
        (1, "labels", {"b": None}, {}),
        (0, "closed", {"a": None}, refused("no embedding")),
        (1, "closed", {"b": None}, refused("no embedding")),
        (0, "broken", {"a": None}, failed()),
        (1, "broken", {"b": None}, refused()),
        (0, "slow", {"a": 12.0}, {}),
        torn='{"observation": "round-0000',
    )
    names = ["labels", "closed", "broken", "slow", "later"]
    cells = dict(zip(names, read_cells(folder, "initial", names, 2), strict=True))
    assert [cells[name].status for name in names] == ["done", "refused", "failed", "pending", "pending"]
    assert cells["closed"].reason == "no embedding"
    assert cells["broken"].reason == "boom"
    assert cells["labels"].leakage is None
    assert cells["labels"].label_share == 1.0
    assert [cell_text(cells[name]) for name in names] == ["labels 100%", "n/a", "failed", "…", "…"]
    assert [cell_level(cells[name]) for name in names] == ["labels", "refused", "failed", "pending", "pending"]
    assert "no embedding" in cell_story(cells["closed"])


def test_an_attack_tried_again_counts_once(audit):
    folder = audit((0, "x", {"a": None}, failed()), (0, "x", {"a": 25.0}, {}))
    (cell,) = read_cells(folder, "initial", ["x"], 1)
    assert (cell.status, cell.failed, cell.leakage) == ("done", 0, 25.0)


def test_what_a_training_left(write_run):
    rounds = [
        {"round": 1, "failures": [{"client": 1, "error": "x"}, {"client": None, "error": UNCHANGED}]},
        {"round": 2, "accuracy": 0.5, "mjp_ratio": 0.1, "mjpx": 1, "loss": 2.0},
    ]
    folder = write_run(rounds=rounds)
    assert read_training(folder, ["mjp"]) == (0.5, 6.0, {"mjp_ratio": 0.1}, 1, 1)
    assert read_training(folder, [])[2] == {}


@pytest.fixture
def shown(tmp_path, records):
    """Write an audit's folder: lines of (update, attack, images, other fields), whole images."""

    def write(*lines):
        rows = [
            records.attack(0, n, *images, attack=name, **{"certificate": {}, **more}) for n, name, images, more in lines
        ]
        (tmp_path / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / BASELINE).write_text(json.dumps(GUESS))
        return tmp_path

    return write


CERTIFIED = {"certificate": {"status": "certified"}}


def test_what_the_model_saw_is_no_guess(shown, records):
    """From where it is recognisable on, certified or not: half precision leaves a mirrored image 41 dB."""

    def image(name, seen, own):
        return [records.image(seen, name, private_psnr=own, private_ssim=0.1)]

    folder = shown(
        (0, "x", image("a", 41.0, 8.0), {}),
        (1, "x", image("b", 19.9, 9.0), {}),
        (0, "y", image("a", 12.0, 8.0), {}),
        (1, "y", image("b", 12.0, 9.0), {}),
    )
    x, y = read_cells(folder, "initial", ["x", "y"], 2)
    assert (x.as_seen, y.as_seen) == (1, 0)
    assert (x.counts, y.counts) == (
        Counts(0, 1, 0, 2, 2, as_seen=1, updates=2, leaking=1, ahead=1, apart=1),
        Counts(0, 0, 0, 2, 2, updates=2),
    )
    assert (cell_text(x), cell_level(x)) == ("8.5 seen", "as-seen")
    assert "1 of 2 as the model saw them, changed by the client: look at them" in cell_story(x)
    assert "1 of 2 recognisable, without the update 0 of 2, 0 certified" in cell_story(x)
    assert (cell_text(y), cell_level(y)) == ("8.5", "guess")


def test_what_is_recognisable_both_ways_counts_once(shown, records):
    folder = shown((0, "x", [records.image(50.0, "a", private_psnr=30.0, private_ssim=0.1)], {}))
    (cell,) = read_cells(folder, "initial", ["x"], 1)
    assert (cell.recognised, cell.as_seen, cell.counts) == (
        1.0,
        0,
        Counts(0, 1, 0, 1, 1, updates=1, leaking=1, ahead=1, apart=1),
    )


def test_an_attack_that_returns_the_guess_rebuilds_nothing(shown, records):
    """Images of low contrast, which their mean shows at 24 dB."""
    flat = [[records.image(24.2, name, guess_psnr=24.2)] for name in "ab"]
    folder = shown((0, "x", flat[0], {}), (1, "x", flat[1], {}))
    (folder / BASELINE).write_text(json.dumps({"a": 24.2, "b": 24.2}))
    (cell,) = read_cells(folder, "initial", ["x"], 2)
    assert (cell.recognised, cell.counts) == (0.0, Counts(0, 0, 0, 2, 2, updates=2))
    assert (cell_level(cell), cell.counts.level) == ("guess", "open")
    better = [[records.image(25.2, name, guess_psnr=24.2)] for name in "ab"]
    shown((0, "x", better[0], {}), (1, "x", better[1], {}))
    (cell,) = read_cells(folder, "initial", ["x"], 2)
    assert cell.recognised == 1.0


def test_one_image_that_came_out_is_no_guess_whatever_the_mean(shown, records):
    lines = [(n, "x", [records.image(45.0 if n == 0 else 10.0, f"{n}", guess_psnr=10.0)], {}) for n in range(50)]
    folder = shown(*lines)
    (folder / BASELINE).write_text(json.dumps({str(n): 10.0 for n in range(50)}))
    (cell,) = read_cells(folder, "initial", ["x"], 50)
    assert cell.leakage - cell.baseline < 1
    assert cell_level(cell) == "traces"
    folder = shown(*[(n, "x", [records.image(24.0 - 3 * n, f"{n}", guess_psnr=22.0)], {}) for n in range(2)])
    (folder / BASELINE).write_text(json.dumps({str(n): 22.0 for n in range(2)}))
    (cell,) = read_cells(folder, "initial", ["x"], 2)
    assert (cell.leakage, cell.recognised, cell_level(cell)) == (22.5, 0.5, "recognisable")


def test_an_attack_that_leaves_labels_alone_on_one_model_keeps_its_images_of_the_other(
    shown, records, tmp_path_factory
):
    images = tmp_path_factory.mktemp("initial")
    shutil.copytree(shown((0, "x", [records.image(60.0, "a")], CERTIFIED)), images, dirs_exist_ok=True)
    labels = shown((0, "x", [records.image(None, "a", label_recovered=3, label=3)], {"target": "images"}))
    assert read_counts([images], ["x"]).certified == read_counts([images, labels], ["x"]).certified == 1


def test_a_row_counts_an_image_once_over_its_attacks_and_states(tmp_path, shown, records):
    folder = shown(
        (0, "x", [records.image(30.0, "a")], {}),
        (1, "x", [records.image(8.0, "b")], {}),
        (0, "y", [records.image(60.0, "a")], CERTIFIED),
        (1, "y", [records.image(26.0, "b")], {}),
        (2, "y", [records.image(None, "c")], refused()),
        (0, "blind", [records.image(60.0, "d")], {}),
    )
    counts = Counts(1, 2, 0, 2, 4, refused=1, updates=2, leaking=2, ahead=2, apart=2)
    assert read_counts([folder], {"x", "y"}) == counts
    assert read_counts([folder, folder], ["x", "y"]) == Counts(
        1, 2, 0, 2, 8, refused=1, updates=2, leaking=2, ahead=2, apart=2
    )
    assert read_counts([tmp_path / "none yet"], ["x", "y"]) == Counts(updates=0)
    assert Counts().level == "not tested"
    assert counts.level == "broken"


def test_a_row_counts_as_the_page_of_its_run_does(shown, records):
    """What the model saw by its own guess, what a baseline reaches, refusals, and two updates of one image."""

    def seen(name, **values):
        return [records.image(24.5, name, private_psnr=9.0, private_ssim=0.1, guess_psnr=10.0, **values)]

    again = seen("a", seen_guess_psnr=11.0)
    folder = shown(
        (0, "x", again, {}),
        (1, "x", seen("b", seen_guess_psnr=24.0), {}),
        (2, "x", [records.image(None, "c")], refused()),
        (3, "x", [{**again[0], "image": "twin"}], {}),
        (0, "blind", again, {"baseline": True}),
    )
    page = verdict(read_run(folder))
    counts = read_counts([folder], {"x"})
    assert counts == page.counts == Counts(0, 1, 1, 2, 3, as_seen=1, refused=1, updates=2, leaking=1, guessing=1)
    assert counts.level == page.level


def test_a_baseline_that_never_ran_is_unknown_where_it_is_a_column(shown, records):
    """Another call had asked for it, and stopped before its first line."""
    folder = shown(*[(n, "x", [records.image(25.0, f"{n}", guess_psnr=10.0)], {}) for n in range(20)])
    (folder / "config.yaml").write_text("attack: {x: {}, blind: {target: random}}\n")
    for blind, level, unknown in (([], "broken", 0), (["blind"], "open", 20)):
        columns = ["x", *blind]
        cell, counts = read_cells(folder, "initial", columns, 20)[0], read_counts([folder], columns, blind)
        assert cell.counts == counts
        assert (counts.level, counts.unguessed) == (level, unknown)


def test_a_certificate_that_is_known_to_be_wrong_breaks_nothing(shown, records):
    folder = shown((0, "x", [records.image(15.0, "a")], CERTIFIED), (1, "x", [records.image(None, "b")], CERTIFIED))
    counts = read_counts([folder], ["x"])
    assert (counts, counts.level) == (Counts(0, 0, 0, 1, 1, updates=1), "open")


def test_labels_and_refusals_are_no_test_of_images(shown, records):
    folder = shown(
        (0, "labels", [records.image(None, "a")], CERTIFIED | {"labels": [3]}),
        (0, "x", [records.image(None, "a")], refused()),
    )
    assert read_counts([folder], ["labels", "x"]).level == "not tested"
