"""The leakage matrix's files and its page."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from fedsim.report.matrix.cells import Matrix, MatrixCell, MatrixColumn, MatrixRow, RowState, with_front
from fedsim.report.matrix.files import COLUMNS, build_matrix_report, write_matrix
from fedsim.report.matrix.wording import cell_level, cell_story, leakage_level, leakage_text, strongest_level
from fedsim.report.run.images.counts import Counts
from fedsim.report.thresholds import EXACT

pytestmark = pytest.mark.usefixtures("drawn_once")
EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("leakage", "level"),
    [
        (None, "pending"),
        (9.0, "guess"),
        (12.9, "guess"),
        (13.1, "traces"),
        (19.9, "traces"),
        (20.0, "recognisable"),
        (30.0, "nearly-identical"),
        (40.0, "indistinguishable"),
        (EXACT, "indistinguishable"),
    ],
)
def test_levels_change_at_their_thresholds(leakage, level):
    assert leakage_level(leakage, 12.0) == level


def test_a_cell_at_its_guess_is_none_that_is_recognisable():
    assert [leakage_level(value, 24.2) for value in (24.2, 25.1, 25.3)] == ["guess", "guess", "recognisable"]


@pytest.mark.parametrize(("leakage", "guess", "level"), [(10.7, 10.0, "traces"), (31.1, 31.0, "recognisable")])
def test_a_mean_at_the_guess_that_hides_a_recognisable_image_is_never_more_than_recognisable(leakage, guess, level):
    values = {"status": "done", "leakage": leakage, "baseline": guess, "pictures": 50, "rebuilt": 50, "done": 50}
    cell = MatrixCell("a", "initial", recognised=0.02, **values)
    row = MatrixRow("r", cells=(cell,), audits={"initial": RowState("done")})
    assert (cell_level(cell), strongest_level(row, "initial")) == (level, level)
    none = replace(cell, recognised=0.0)
    assert (cell_level(none), strongest_level(replace(row, cells=(none,)), "initial")) == ("guess", "guess")


@pytest.mark.parametrize("bar", [20.0, 30.0, 40.0])
def test_a_square_is_not_rounded_up_to_what_its_colour_denies(bar):
    assert [leakage_text(value) for value in (bar - 0.03, bar)] == [f"{bar - 0.1}", f"{bar}"]
    cell = MatrixCell("a", "initial", "done", rebuilt=1, pictures=1, leakage=bar - 0.03, private_psnr=bar - 0.03)
    assert f"mean PSNR of those {bar - 0.1} dB" in cell_story(cell)


def small_matrix(name="m", evil=""):
    def row(defense, accuracy, leakage, batch=1, **values):
        done = {"done": 1, "pictures": batch, "rebuilt": batch, "recognised": float(leakage >= 20), "seconds": 0.1}
        counts = Counts(0, batch * (leakage >= 20), 0, batch, 1)
        none = {"refused": 1, "pictures": batch, "baseline": 10.0, "batch": batch}
        cells = (
            MatrixCell(
                "patch_gradient", "initial", "done", leakage=leakage, baseline=10.0, batch=batch, counts=counts, **done
            ),
            MatrixCell("april", "initial", "refused", f"needs its own model{evil}", **none),
        )
        audits = {"initial": RowState("done", "", 1.0, f"rows/{defense}/audit-initial/report.html")}
        trainings = {"0": RowState("done", "", 2.0, None)}
        told = {"settings": f"settings{evil}", "measured": {"eps": 1.5}, "trainings": trainings, "audits": audits}
        return MatrixRow(
            defense,
            accuracies=(accuracy,),
            train_seconds=2.0,
            client_failures=1,
            unchanged=2,
            cells=cells,
            counts=counts,
            **told,
            **values,
        )

    stopped = {"initial": RowState("refused", f"the server sees sums alone{evil}")}
    rows = [
        row("none", 0.9, 60.0, defended=False),
        row(f"noise{evil}", 0.8, 15.0),
        row("worse", 0.7, 33.0),
        row("mixup", 0.85, 8.0, batch=2),
        MatrixRow("secure_aggregation", accuracies=(0.9,), trainings={"0": RowState("done")}, audits=stopped),
    ]
    facts = (("Model", f"vit{evil}"),)
    columns = (
        MatrixColumn("patch_gradient", "patch_gradient", f"rcond=None{evil}", knows=(f"the model{evil}", "one image")),
        MatrixColumn("april", "april", "levels=255"),
    )
    return Matrix(name, facts, columns, ("initial",), with_front(rows), 400, True, 12.0)


def test_the_numbers_come_back_from_the_file(tmp_path):
    matrix = small_matrix()
    write_matrix(matrix, tmp_path)
    assert Matrix.from_dict(json.loads((tmp_path / "matrix.json").read_text())) == matrix
    with (tmp_path / "matrix.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == 8
    assert [line["strongest"] for line in lines] == ["True", "False"] * 3 + ["False", "False"]
    pareto = {line["defense"]: line["pareto"] for line in lines}
    assert pareto == {"none": "False", "noise": "True", "worse": "False", "mixup": "True"}
    assert [(line["batch"], line["defended"]) for line in lines[::2]] == [
        ("1", "False"),
        ("1", "True"),
        ("1", "True"),
        ("2", "True"),
    ]
    assert float(lines[0]["gain"]) == 50.0
    assert lines[1]["reason"] == "needs its own model"
    assert (lines[0]["level"], lines[0]["row_recognisable"], lines[0]["row_images"], lines[0]["guessed"]) == (
        "open",
        "1",
        "1",
        "0",
    )
    assert (lines[0]["unguessed"], lines[0]["row_unguessed"]) == ("0", "0")
    # What an attack reached stands in its cell, and the row leaks what the guess would show at least.
    assert (float(lines[6]["leakage"]), float(lines[6]["row_leakage"])) == (8.0, 10.0)


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
    assert "-10.0 ± 5.0" in told
    assert "rcond=None" in told
    assert "levels=255" in told
    assert "the model; one image" in told
    assert "1 of 1 recognisable, without the update 0 of 1, 0 certified" in told
    assert "1 to 2, each up to 100 % of all" in told
    assert "1 client failure; nothing aggregated in 2 rounds" in told
    assert "safe" not in told[told.index("fedsim · ") : told.index("The numbers are in")]
    drawn = "".join(parsed.text)[told.index("Privacy") :]
    assert all(name in drawn for name in ("none", "noise", "worse", "mixup"))
    assert sum("Updates of" in text for text in parsed.text) >= 4  # two verdicts, two plots
    links = [values["href"] for tag, values in parsed.tags if tag == "a" and values["href"] != "#main"]
    assert "rows/none/audit-initial/report.html" in links
    cells = [values for tag, values in parsed.tags if tag == "td" and "class" in values]
    assert sum("level-indistinguishable" in values["class"] for values in cells) == 2  # the cell and the sum
    assert any("needs its own model" in (values.get("title") or "") for values in cells)


class Rows(HTMLParser):
    """Of the first heat map: each row's links, and the text of each of its cells."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.within = [], 0
        self.feed(text[text.index('aria-label="Heat map') : text.index('<ul class="key">')])

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "tr":
            self.rows.append({"links": [], "cells": []})
        elif tag == "a":
            self.rows[-1]["links"].append((self.within, values["href"]))
        elif tag in ("th", "td"):
            self.within = tag
            self.rows[-1]["cells"].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]["cells"]:
            self.rows[-1]["cells"][-1] += data


def test_a_row_has_one_link_and_each_cell_tells_its_story(tmp_path):
    write_matrix(small_matrix(), tmp_path)
    head, *rows = Rows(build_matrix_report(tmp_path).read_text()).rows
    assert head["links"] == []
    names = ("none", "noise", "worse", "mixup")
    assert [row["links"] for row in rows[:4]] == [[("th", f"rows/{name}/audit-initial/report.html")] for name in names]
    assert rows[4]["links"] == []
    name, closed, april, strongest, *_ = (" ".join(cell.split()) for cell in rows[1]["cells"])
    assert name == "noise"
    assert closed == (
        "15.0: 1 of 1 images rebuilt; +5.0 dB against a guess; 0 of 1 recognisable, without the update 0 of 1, 0 "
        "certified; 0.1 s an update"
    )
    assert april == "n/a: refused on 1 of 1; needs its own model"
    assert strongest.startswith("15.0: patch_gradient: 1 of 1 images rebuilt")


def test_undefended_rows_are_no_defenses(tmp_path):
    matrix = small_matrix()
    write_matrix(replace(matrix, rows=matrix.rows[:1]), tmp_path)
    assert "<h1>2 attacks against no defense</h1>" in build_matrix_report(tmp_path).read_text()


def test_the_page_escapes_what_it_was_told(tmp_path):
    write_matrix(small_matrix(evil=EVIL), tmp_path)
    parsed = Tags(build_matrix_report(tmp_path).read_text())
    assert not [tag for tag, values in parsed.tags if tag in ("img", "iframe") or "onerror" in values]
    assert [values for tag, values in parsed.tags if tag == "script"] == [{}]  # the page's own
    assert EVIL in "".join(parsed.text)


def test_the_pictures_are_pictures(tmp_path):
    write_matrix(small_matrix(), tmp_path)
    build_matrix_report(tmp_path)
    for name in ("heat_map.png", "privacy_utility.png", "privacy_utility_2.png"):
        picture = Image.open(BytesIO((tmp_path / name).read_bytes()))
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 10
    colours = {colour for _, colour in Image.open(tmp_path / "heat_map.png").convert("RGB").getcolors(1 << 20)}
    assert (0x9C, 0x1C, 0x14) in colours  # indistinguishable
    assert (0xFD, 0xEA, 0xC2) in colours  # traces


def test_a_plot_that_is_none_any_more_is_removed(tmp_path):
    write_matrix(small_matrix(), tmp_path)
    build_matrix_report(tmp_path)
    whole = small_matrix()
    write_matrix(replace(whole, rows=tuple(row for row in whole.rows if row.name != "mixup")), tmp_path)
    text = build_matrix_report(tmp_path).read_text()
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["heat_map.png", "privacy_utility.png"]
    assert "privacy_utility_2" not in text


def test_a_matrix_of_which_nothing_is_known_is_drawn_all_the_same(tmp_path):
    rows = (MatrixRow("none", trainings={"0": RowState()}, audits={"initial": RowState()}),)
    write_matrix(Matrix("m", (), (MatrixColumn("x", "x", ""),), ("initial",), rows), tmp_path)
    text = build_matrix_report(tmp_path).read_text()
    assert "Nothing has been measured yet" in text
    assert not (tmp_path / "privacy_utility.png").exists()


def test_without_numbers_there_is_no_page(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        build_matrix_report(tmp_path)


def test_a_baselines_column_says_so(tmp_path):
    matrix = small_matrix()
    rows = tuple(
        replace(row, cells=tuple(replace(cell, blind=cell.attack == "april") for cell in row.cells))
        for row in matrix.rows
    )
    columns = tuple(replace(column, blind=column.name == "april") for column in matrix.columns)
    write_matrix(replace(matrix, rows=rows, columns=columns), tmp_path)
    text = build_matrix_report(tmp_path).read_text(encoding="utf-8")
    assert '<th scope="col">april <span class="hint">baseline</span></th>' in text
    assert "<h1>1 attack against 4 defenses</h1>" in text
    assert "Open: 2 of 2 defenses (recognisable images: noise 0 of 1; worse 1 of 1): none is certified" in text
    assert "baseline</span>" not in _page(tmp_path / "plain")


def _page(folder):
    folder.mkdir()
    write_matrix(small_matrix(), folder)
    return build_matrix_report(folder).read_text(encoding="utf-8")


def test_the_summary_says_what_the_model_saw(tmp_path):
    cell = MatrixCell("x", "initial", "done", done=8, pictures=8, rebuilt=8, leakage=8.0, baseline=11.0, recognised=0.0)
    ats = MatrixRow("ats", accuracies=(0.9,), cells=(replace(cell, as_seen=8),), audits={"initial": RowState("done")})
    write_matrix(Matrix("m", (), (MatrixColumn("x", "", ""),), ("initial",), (ats,), 100), tmp_path)
    page = build_matrix_report(tmp_path).read_text(encoding="utf-8")
    (summary,) = re.findall(r'<td class="sum level-as-seen"[^>]*>', page)
    assert "x: 8 of 8 images rebuilt" in summary
    assert "8 of 8 as the model saw them, changed by the client: look at them" in summary
    assert "no attack is better than the guess" not in page


@pytest.mark.parametrize(
    ("recognised", "level", "more"), [(0.0, "guess", ""), (0.125, "traces", "; one makes images recognisable")]
)
def test_the_strongest_says_what_its_colour_does(tmp_path, recognised, level, more):
    """Seven images at 11 dB and one at 24, whose guess has 13."""
    values = {"done": 8, "pictures": 8, "rebuilt": 8, "leakage": 12.6, "baseline": 13.0, "recognised": recognised}
    row = MatrixRow("none", cells=(MatrixCell("x", "initial", "done", **values),), audits={"initial": RowState("done")})
    write_matrix(Matrix("m", (), (MatrixColumn("x", "", ""),), ("initial",), (row,), 100), tmp_path)
    page = build_matrix_report(tmp_path).read_text(encoding="utf-8")
    told = f"no attack is better than the guess on average{more}"
    assert re.findall(r'<td class="sum (level-[a-z]+)"[^>]* title="([^"]*)"', page) == [(f"level-{level}", told)]


def test_the_file_of_an_earlier_version_is_read_and_says_that_it_has_to_be_counted_anew(tmp_path):
    write_matrix(small_matrix(), tmp_path)
    content = json.loads((tmp_path / "matrix.json").read_text())
    for row in content["rows"]:
        del row["counts"], row["level"], row["unchanged"]
        for cell in row["cells"]:
            del cell["counts"]
            cell["as_seen"] = None
    for column in content["columns"]:
        del column["knows"]
    (tmp_path / "matrix.json").write_text(json.dumps(content))
    told = " ".join(Tags(build_matrix_report(tmp_path).read_text()).text)
    lead = told[told.index("fedsim · ") : told.index("What each attack rebuilds")]
    assert "the levels are counted anew" in lead
    assert not any(word in lead for word in ("Broken", "Open", "Not tested", "recognisable"))
    assert "not counted by the version that wrote this" in told
    assert "not declared" in told
