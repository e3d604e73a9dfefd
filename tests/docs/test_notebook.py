"""The notebooks run as they stand, and what they promise holds."""

import json
import re
import statistics
from typing import Any

import matplotlib as mpl
import pytest

from tests.docs.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text("utf-8"))[
        "cells"
    ]
    return found


def code(name: str) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]


def run(name: str, *smaller: tuple[str, str]) -> dict[str, Any]:
    """The names that a notebook leaves behind, with other words in the place of some that stand in it once."""
    cells, names = code(name), {"__name__": "notebook"}
    for old, new in smaller:
        assert sum(source.count(old) for source in cells) == 1, old
        cells = [source.replace(old, new) for source in cells]
    with mpl.rc_context({"backend": "agg"}):
        for number, source in enumerate(cells):
            exec(compile(source, f"{name}, cell {number}", "exec"), names)
        if "plt" in names:
            names["plt"].close("all")
    return names


def test_a_gradient_in_hand() -> None:
    names = run("gradient_in_hand", ("num_classes=10)\nloss", "num_classes=10, depth=2)\nloss"))
    assert names["result"].psnr[0] > 100
    assert not names["result"].certified
    assert names["certified"].certified
    assert [result.status for result in names["found"]] == ["refused", "done", "refused", "done"]
    assert [result.labels.tolist() for result in names["found"][1::2]] == [[3], [3]]
    assert names["searched"].psnr[0] > 15  # a guess has 12


def test_your_own_flower_app() -> None:
    names = run("own_flower_app")
    assert len(names["attacked"]) == len(names["guessed"]) == 12
    assert statistics.fmean(names["attacked"]) > statistics.fmean(names["guessed"]) + 20
    assert all(after > before for after, before in zip(names["attacked"], names["guessed"], strict=True))


def test_the_attack_on_a_flower_app_takes_a_dozen_lines() -> None:
    (cell,) = [source for source in code("own_flower_app") if "HonestButCurious" in source]
    assert len([line for line in cell.splitlines() if line.strip()]) <= 12


def test_your_own_defense() -> None:
    smaller = ("160:480], 32,", "160:480], 16,"), ("img_size=32", "img_size=16")
    table = run("own_defense", *smaller)["audit"].table.set_index(["defense", "attack"])
    assert table.loc[("none", "patch_gradient"), "certified"] == 2
    assert table.loc[("HidePositions", "patch_gradient"), "refused"] == 2
    assert table.loc[("HidePositions", "row_space"), "least_psnr"] > 40


def test_what_your_training_gives_away() -> None:
    names = run("your_training")
    assert len(names["steps"]) == 6
    assert all(result.psnr[0] > 60 for result in names["steps"].values())
    assert all(names["steps"][0.1, count].certified for count in (1, 5, 20))
    assert names["mixtures"][1].certified
    for size in (2, 4, 8):
        assert not names["mixtures"][size].certified
        assert max(value for value in names["mixtures"][size].psnr if value is not None) < 25
    for size, result in names["batches"].items():
        assert result.labels.sort().values.tolist() == sorted(names["labels"][:size].tolist())
    assert names["weights"].psnr[0] > 60


def test_reading_a_run_folder() -> None:
    names = run("run_folder")
    assert len(names["run"].metrics) >= 2
    assert set(names["run"].attacks["attack"]) == {"patch_gradient", "labels"}
    assert len(names["run"].results) == 4
    assert names["page"].is_file()
    assert names["again"].status == "done"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_of_a_machine_is_in_it(path: Any) -> None:
    for cell in cells(path.stem):
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8"))
