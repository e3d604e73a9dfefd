"""Pages say of defenses and attacks what the matrix measured, by the rule of docs/defenses/index.md."""

import csv
import re
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).parents[2] / "docs"
CLOSED = ("patch_gradient", "row_space", "first_block")
JUDGED = (*CLOSED, "april_optimization")
STOPPED = 15.0
ROWS = {"gradient_noise": ("noise_1e-3", "noise_1e-2", "noise_1e-1", "noise_1"), "fixed_pe": ("sincos_pe", "frozen_pe")}
UNDEFENDED = {1: "none", 2: "none_batch_2", 4: "none_batch_4", 8: "none_batch_8"}

KIN = "`mjp` and its variants, except `mjp_dal`"


def read():
    """Each cell as it was measured last; the second matrix has fewer attacks."""
    cells = {}
    for name in ("matrix.csv", "matrix_second_order.csv"):
        with (DOCS / "results" / name).open(encoding="utf-8", newline="") as file:
            cells |= {(line["defense"], line["attack"]): line for line in csv.DictReader(file)}
    return cells


MATRIX = read()
MEASURED = {row for row, _ in MATRIX}
PAGES = sorted(
    page.stem for page in (DOCS / "defenses").glob("*.md") if MEASURED.intersection(ROWS.get(page.stem, (page.stem,)))
)


def stops(row, attack):
    line = MATRIX[row, attack]
    return line["status"] == "refused" or (float(line["leakage"]) < STOPPED and not float(line["recognised"]))


def outcomes(defense, attack):
    """Of the rows of a defense in which something was there to stop, or came out all the same: whether it was."""
    rows = ROWS.get(defense, (defense,))
    beside = {row: UNDEFENDED[int(MATRIX[row, attack]["batch"])] for row in rows}
    return {stops(row, attack) for row in rows if not (stops(row, attack) and stops(beside[row], attack))}


def items(page, key):
    front = page.read_text(encoding="utf-8").split("---\n")[1]
    kin = [name for name in PAGES if name.startswith("mjp") and name != "mjp_dal"]
    return [name for item in yaml.safe_load(front)[key] for name in (kin if item == KIN else [item])]


def check(name, outcome, named, other):
    """Named where it belongs; without a condition nowhere else."""
    for held in outcome:
        assert any(re.search(rf"\b{name}\b", item) for item in named[held]), f"{name}: {other[held]}"
        assert (not held) in outcome or name not in named[not held], f"{name}: not {other[not held]}"


@pytest.mark.parametrize("defense", PAGES)
def test_a_defense_stops_what_its_page_says(defense):
    page = DOCS / "defenses" / f"{defense}.md"
    named = {True: items(page, "stops"), False: items(page, "does_not_stop")}
    for attack in JUDGED:
        check(attack, outcomes(defense, attack), named, {True: "stopped", False: "not stopped"})


@pytest.mark.parametrize("attack", JUDGED)
def test_an_attack_is_stopped_by_what_its_page_says(attack):
    page = DOCS / "attacks" / f"{attack}.md"
    named = {True: items(page, "stopped_by"), False: items(page, "not_stopped_by")}
    for defense in PAGES:
        check(defense, outcomes(defense, attack), named, {True: "stops it", False: "does not stop it"})


def test_every_row_of_the_matrix_has_its_page():
    rows = {row for page in PAGES for row in ROWS.get(page, (page,))}
    assert rows == {row for row in MEASURED if not row.startswith("none")}


def check_figures(item, rows, attack):
    """What an item says of 8 digits is what a cell of these rows has."""
    cells = [MATRIX[row, attack] for row in rows]
    psnr = [float(line["private_psnr"]) for line in cells if line["private_psnr"]]
    said = set(re.findall(r"mean PSNR of 8 digits ([\d.]+)", item))
    assert said <= {f"{value:.{digits}f}" for value in psnr for digits in (0, 1)}, item
    counts = set(re.findall(r"(?<!or )(\d) of 8 (?:digits )?recognisable", item))
    assert counts <= {line.get("recognisable") for line in cells}, item


@pytest.mark.parametrize("defense", PAGES)
def test_a_defense_s_figures_are_the_matrix_s(defense):
    page, rows = DOCS / "defenses" / f"{defense}.md", ROWS.get(defense, (defense,))
    for item in (item for key in ("stops", "does_not_stop") for item in items(page, key)):
        named = re.match(r"`?(\w+)", item)
        if named and (rows[0], named[1]) in MATRIX:
            check_figures(item, rows, named[1])


@pytest.mark.parametrize("attack", [*JUDGED, "gauss_newton"])
def test_an_attack_s_figures_are_the_matrix_s(attack):
    page = DOCS / "attacks" / f"{attack}.md"
    for item in (item for key in ("stopped_by", "not_stopped_by") for item in items(page, key)):
        named = re.match(r"`?(\w+)", item)
        if named and named[1] in PAGES:
            check_figures(item, ROWS.get(named[1], (named[1],)), attack)


@pytest.mark.parametrize("attack", ["ggl", "gias", "gifd", "lti"])
def test_a_learned_prior_s_figures_are_those_that_its_study_printed(attack):
    pages = [(DOCS / "results" / f"priors_{name}.md").read_text(encoding="utf-8") for name in ("batches", "defended")]
    printed = {f"{float(mean):.1f}" for page in pages for mean in re.findall(r"\| ([\d.]+) ±", page)}
    page = DOCS / "attacks" / f"{attack}.md"
    for item in (item for key in ("stopped_by", "not_stopped_by") for item in items(page, key)):
        assert set(re.findall(r"\b[1-9]\d*\.\d\b", item)) <= printed, item


def test_what_follows_from_a_matrix_follows_from_all_of_its_rows():
    """Its page was made of several calls: strongest cells, the row's leakage and the front are of the whole."""
    with (DOCS / "results" / "matrix_second_order.csv").open(encoding="utf-8", newline="") as file:
        rows = {}
        for line in csv.DictReader(file):
            rows.setdefault(line["defense"], []).append(line)
    points, marked = {}, set()
    for name, cells in rows.items():
        first, guess = cells[0], float(cells[0]["baseline"])
        leaked = [float(cell["leakage"]) for cell in cells if cell["leakage"]]
        tested = first["level"] != "not tested"
        if tested:
            assert float(first["row_leakage"]) == pytest.approx(max([guess, *leaked])), name
        assert all(int(cell["rebuilt"]) <= int(cell["done"]) * int(cell["batch"]) for cell in cells if cell["rebuilt"])
        marked |= {name} if first["pareto"] == "True" else set()
        shown = tested and not first["mismatch"] and first["accuracy"]
        seen = any(int(cell["as_seen"] or 0) for cell in cells) and float(first["row_leakage"]) < 20
        if shown and not seen:
            points[name] = (int(first["batch"]), float(first["accuracy"]), float(first["row_leakage"]))
    dominated = {
        name
        for name, (batch, accuracy, leakage) in points.items()
        for same, better, less in points.values()
        if same == batch and better >= accuracy and less <= leakage and (better, less) != (accuracy, leakage)
    }
    defended = {name for name in points if rows[name][0]["defended"] == "True"}
    assert marked == defended - dominated
