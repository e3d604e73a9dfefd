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

KIN = "`mjp` and its kin, but for `mjp_dal`"


def read():
    with (DOCS / "results" / "matrix.csv").open(encoding="utf-8", newline="") as file:
        return {(line["defense"], line["attack"]): line for line in csv.DictReader(file)}


MATRIX = read()
MEASURED = {row for row, _ in MATRIX}
PAGES = sorted(
    page.stem for page in (DOCS / "defenses").glob("*.md") if MEASURED.intersection(ROWS.get(page.stem, (page.stem,)))
)


def stops(row, attack):
    line = MATRIX[row, attack]
    return line["status"] == "refused" or float(line["leakage"]) < STOPPED


def listed(page, key):
    front = page.read_text(encoding="utf-8").split("---\n")[1]
    kin = " ".join(name for name in PAGES if name.startswith("mjp") and name != "mjp_dal")
    return " ".join(yaml.safe_load(front)[key]).replace(KIN, kin)


@pytest.mark.parametrize("defense", PAGES)
def test_a_defense_stops_what_its_page_says_and_nothing_else(defense):
    page = DOCS / "defenses" / f"{defense}.md"
    said = {True: listed(page, "stops"), False: listed(page, "does_not_stop")}
    for attack in JUDGED:
        for row in ROWS.get(defense, (defense,)):
            alone = UNDEFENDED[int(MATRIX[row, attack]["batch"])]
            if not stops(alone, attack):  # else there is nothing to stop
                held = stops(row, attack)
                assert re.search(rf"\b{attack}\b", said[held]), f"{row}: {attack}, {'stops' if held else 'does not'}"


@pytest.mark.parametrize("attack", JUDGED)
def test_an_attack_is_stopped_by_no_other_defenses_than_their_pages_say(attack):
    page = DOCS / "attacks" / f"{attack}.md"
    said = {True: listed(page, "stopped_by"), False: listed(page, "not_stopped_by")}
    for defense in PAGES:
        rows = [
            row
            for row in ROWS.get(defense, (defense,))
            if not stops(UNDEFENDED[int(MATRIX[row, attack]["batch"])], attack)
        ]
        missing = [
            held for held in {stops(row, attack) for row in rows} if not re.search(rf"\b{defense}\b", said[held])
        ]
        assert not missing, f"{defense} {'stops it' if missing[0] else 'does not'}"


def test_the_pages_are_the_matrix():
    assert len(PAGES) > 20
