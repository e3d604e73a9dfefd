"""Bars on a terminal of 80 columns."""

import io

from rich.console import Console

from experiments.cli.progress import Bars


def test_a_long_note_leaves_the_bars_their_names_and_numbers():
    output = io.StringIO()
    with Bars(Console(file=output, width=80, force_terminal=True, color_system=None)) as bars:
        bars.set("updates", 3, 16)
        bars.set("steps", 400, 4800, "april_optimization on round-00000-client-00001: step 400/4800, objective -9.1")
    last = [line for line in output.getvalue().splitlines() if "steps" in line][-1]
    assert "steps " in last
    assert "400/4800 " in last
    assert "april_optimization on" in last
    assert "updates " in output.getvalue()
    assert " 3/16 " in output.getvalue()
