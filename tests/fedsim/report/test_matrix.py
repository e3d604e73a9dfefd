"""The leakage matrix's numbers, its front, its files and its page."""

import csv
import json
import math
from html.parser import HTMLParser
from io import BytesIO
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedsim.report.matrix import COLUMNS, build_matrix_report, write_matrix
from fedsim.report.matrix_cells import (
    BASELINE,
    EXACT,
    Cell,
    Matrix,
    Row,
    Stage,
    pareto_front,
    read_cells,
    read_training,
    with_front,
)
from fedsim.report.matrix_wording import cell_level, cell_story, cell_text, leakage_level

EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
GUESS = {"a": 12.0, "b": 10.0, "c": 8.0, "d": 14.0}


@pytest.fixture
def audit(tmp_path, records):
    """Write an audit's folder: a guess, and lines of (update, attack, images by name, other fields)."""

    def write(*lines, torn=""):
        rows = []
        for number, attack, images, other in lines:
            pictures = [records.image(30.0, name, private_psnr=value) for name, value in images.items()]
            rows.append(records.attack(0, number, *pictures, attack=attack, **other))
        (tmp_path / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
        (tmp_path / BASELINE).write_text(json.dumps(GUESS))
        return tmp_path

    return write


def refused(reason="nothing shared"):
    return {"status": "refused", "reason": reason, "label_exact": None, "label_share": None, "seconds": 9.0}


def test_a_cell_counts_all_pictures_and_none_for_more_than_exact(audit):
    folder = audit(
        (0, "x", {"a": 300.0}, {"seconds": 1.0}),
        (1, "x", {"b": 20.0}, {"seconds": 3.0, "label_exact": False, "label_share": 0.5}),
        (2, "x", {"c": None}, refused()),
        (3, "x", {"d": None}, {"status": "failed", "reason": "boom", "label_exact": None, "label_share": None}),
    )
    (cell,) = read_cells(folder, "initial", ["x"], 4)
    assert (cell.status, cell.done, cell.refused, cell.failed) == ("done", 2, 1, 1)
    assert (cell.pictures, cell.rebuilt) == (4, 2)
    assert cell.private_psnr == pytest.approx((300 + 20) / 2)
    assert cell.leakage == pytest.approx((EXACT + 20 + GUESS["c"] + GUESS["d"]) / 4)
    assert cell.baseline == pytest.approx(11.0)
    assert cell.gain == pytest.approx(cell.leakage - 11.0)
    assert cell.recognised == pytest.approx(2 / 4)
    assert cell.label_exact == pytest.approx(0.5)
    assert cell.label_share == pytest.approx(0.75)
    assert cell.seconds == pytest.approx(2.0)


def test_cells_without_pictures_say_why(audit):
    folder = audit(
        (0, "labels", {"a": None}, {}),
        (1, "labels", {"b": None}, {}),
        (0, "closed", {"a": None}, refused("no embedding")),
        (1, "closed", {"b": None}, refused("no embedding")),
        (0, "broken", {"a": None}, {"status": "failed", "reason": "boom"}),
        (1, "broken", {"b": None}, refused()),
        (0, "slow", {"a": 12.0}, {}),
        torn='{"observation": "round-0000',
    )
    names = ["labels", "closed", "broken", "slow", "later"]
    cells = dict(zip(names, read_cells(folder, "initial", names, 2), strict=True))
    assert [cells[name].status for name in names] == ["done", "refused", "failed", "pending", "pending"]
    assert cells["closed"].reason == "no embedding"
    assert cells["labels"].leakage is None
    assert cells["labels"].label_share == 1.0
    assert [cell_text(cells[name]) for name in names] == ["labels 100%", "n/a", "failed", "…", "…"]
    assert [cell_level(cells[name]) for name in names] == ["labels", "refused", "failed", "pending", "pending"]
    assert "no embedding" in cell_story(cells["closed"])


def test_an_attack_tried_again_counts_once(audit):
    folder = audit((0, "x", {"a": None}, {"status": "failed", "reason": "boom"}), (0, "x", {"a": 25.0}, {}))
    (cell,) = read_cells(folder, "initial", ["x"], 1)
    assert (cell.status, cell.failed, cell.leakage) == ("done", 0, 25.0)


def test_what_a_training_left(write_run):
    rounds = [
        {"round": 1, "failures": [{"client": 1, "error": "x"}]},
        {"round": 2, "accuracy": 0.5, "mjp_ratio": 0.1, "mjpx": 1, "loss": 2.0},
    ]
    folder = write_run(rounds=rounds)
    assert read_training(folder, ["mjp"]) == (0.5, 6.0, {"mjp_ratio": 0.1}, 1)
    assert read_training(folder, [])[2] == {}


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
    cell = Cell("x", "initial", "done", leakage=20.0, baseline=10.0)
    rows = with_front(
        [
            Row("measured", accuracies=(0.5,), cells=(cell,)),
            Row("worse", accuracies=(0.4,), cells=(cell,)),
            Row("untrained", cells=(cell,)),
            Row("unaudited", accuracies=(0.9,)),
        ]
    )
    assert [row.pareto for row in rows] == [True, False, False, False]


def test_a_row_that_no_attack_gets_into_leaks_the_guess_and_one_that_failed_is_unknown():
    labels = Cell("labels", "initial", "done", label_share=1.0, baseline=11.0)
    no = Cell("x", "initial", "refused", baseline=11.0)
    assert Row("r", cells=(labels, no)).leakage == 11.0
    assert Row("r", cells=(labels, no, Cell("y", "initial", "failed", baseline=11.0))).leakage is None
    assert Row("r").leakage is None


def test_the_strongest_is_taken_over_both_states():
    cells = (Cell("x", "initial", "done", leakage=20.0), Cell("y", "trained", "done", leakage=30.0))
    row = Row("r", accuracies=(0.5, 0.7), cells=cells)
    assert row.strongest == cells[1]
    assert row.strongest_in("initial") == cells[0]
    assert row.accuracy == pytest.approx(0.6)
    assert row.spread == pytest.approx(math.sqrt(0.02))


@pytest.mark.parametrize(
    ("leakage", "level"),
    [
        (None, "pending"),
        (9.0, "guess"),
        (12.9, "guess"),
        (13.1, "traces"),
        (20.0, "recognisable"),
        (30.0, "nearly-identical"),
        (40.0, "indistinguishable"),
        (EXACT, "indistinguishable"),
    ],
)
def test_levels_change_at_their_thresholds(leakage, level):
    assert leakage_level(leakage, 12.0) == level


def small_matrix(name="m", evil=""):
    def row(defense, accuracy, leakage, **values):
        cells = (
            Cell("patch_gradient", "initial", "done", "", 1, 0, 0, 1, 1, leakage, leakage, 10.0, 1.0, seconds=0.1),
            Cell("april", "initial", "refused", f"needs its own model{evil}", refused=1, pictures=1, baseline=10.0),
        )
        audits = {"initial": Stage("done", "", 1.0, f"rows/{defense}/audit-initial/report.html")}
        trainings = {"0": Stage("done", "", 2.0, None)}
        return Row(defense, f"settings{evil}", (accuracy,), 2.0, {"eps": 1.5}, 1, trainings, audits, cells, **values)

    stopped = {"initial": Stage("refused", f"the server sees sums alone{evil}")}
    rows = [
        row("none", 0.9, 60.0),
        row(f"noise{evil}", 0.8, 15.0),
        row("worse", 0.7, 33.0),
        Row("secure_aggregation", accuracies=(0.9,), trainings={"0": Stage("done")}, audits=stopped),
    ]
    facts = (("Model", f"vit{evil}"),)
    return Matrix(name, facts, ("patch_gradient", "april"), ("initial",), with_front(rows), True, 12.0)


def test_the_numbers_come_back_from_the_file(tmp_path):
    matrix = small_matrix()
    write_matrix(matrix, tmp_path)
    assert Matrix.from_dict(json.loads((tmp_path / "matrix.json").read_text())) == matrix
    with (tmp_path / "matrix.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == 6
    assert [line["strongest"] for line in lines] == ["True", "False"] * 3
    assert {line["defense"]: line["pareto"] for line in lines} == {"none": "True", "noise": "True", "worse": "False"}
    assert float(lines[0]["gain"]) == 50.0
    assert lines[1]["reason"] == "needs its own model"


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_shows_numbers_reasons_and_every_name(tmp_path):
    write_matrix(small_matrix(), tmp_path)
    page = build_matrix_report(tmp_path)
    assert page == tmp_path / "matrix.html"
    parsed = Tags(page.read_text())
    told = " ".join(parsed.text)
    for words in ("≥ 60", "15.0", "n/a", "needs its own model", "the server sees sums alone", "10.0 dB", "90.0 %"):
        assert words in told, words
    drawn = "".join(parsed.text)[told.index("Privacy") :]
    assert all(name in drawn for name in ("none", "noise", "worse"))
    links = [values["href"] for tag, values in parsed.tags if tag == "a"]
    assert "rows/none/audit-initial/report.html" in links
    cells = [values for tag, values in parsed.tags if tag == "td" and "class" in values]
    assert sum("level-indistinguishable" in values["class"] for values in cells) == 2  # the cell and the sum
    assert any("needs its own model" in (values.get("title") or "") for values in cells)


def test_the_page_escapes_what_it_was_told(tmp_path):
    write_matrix(small_matrix(evil=EVIL), tmp_path)
    parsed = Tags(build_matrix_report(tmp_path).read_text())
    assert not [tag for tag, values in parsed.tags if tag in ("script", "img", "iframe") or "onerror" in values]
    assert EVIL in "".join(parsed.text)


def test_the_pictures_are_pictures(tmp_path):
    write_matrix(small_matrix(), tmp_path)
    build_matrix_report(tmp_path)
    for name in ("heat_map.png", "privacy_utility.png"):
        picture = Image.open(BytesIO((tmp_path / name).read_bytes()))
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 10
    colours = {colour for _, colour in Image.open(tmp_path / "heat_map.png").convert("RGB").getcolors(1 << 20)}
    assert (0x9C, 0x1C, 0x14) in colours  # indistinguishable
    assert (0xFD, 0xEA, 0xC2) in colours  # traces


def test_a_matrix_of_which_nothing_is_known_is_drawn_all_the_same(tmp_path):
    rows = (Row("none", trainings={"0": Stage()}, audits={"initial": Stage()}),)
    write_matrix(Matrix("m", (), ("x",), ("initial",), rows), tmp_path)
    text = build_matrix_report(tmp_path).read_text()
    assert "Nothing has been measured yet" in text
    assert not (tmp_path / "privacy_utility.png").exists()


def test_without_numbers_there_is_no_page(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        build_matrix_report(tmp_path)
