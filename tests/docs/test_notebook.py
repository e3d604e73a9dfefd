"""The notebook runs as it stands, and what it promises holds."""

import json
import re
import statistics
from typing import Any

import matplotlib as mpl
import pytest

from tests.docs.blocks import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "own_flower_app.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names that the notebook leaves behind."""
    names: dict[str, Any] = {"__name__": "notebook"}
    with mpl.rc_context({"backend": "agg"}):
        for number, code in enumerate(CODE):
            exec(compile(code, f"cell {number}", "exec"), names)
        names["plt"].close("all")
    return names


def test_it_beats_a_guess_without_any_update(shown: Any) -> None:
    assert len(shown["attacked"]) == len(shown["guessed"]) == 12
    assert statistics.fmean(shown["attacked"]) > statistics.fmean(shown["guessed"]) + 20
    assert all(after > before for after, before in zip(shown["attacked"], shown["guessed"], strict=True))


def test_the_attack_takes_about_fifteen_lines() -> None:
    (cell,) = [code for code in CODE if "Eavesdropper" in code]
    assert len([line for line in cell.splitlines() if line.strip()]) <= 15


def test_nothing_of_a_machine_is_in_it() -> None:
    for cell in CELLS:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text(encoding="utf-8"))
