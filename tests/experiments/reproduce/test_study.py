"""What reproductions have in common: units are computed once, and pages say what they are."""

import os
import signal
import subprocess
import sys

import pytest

from experiments.reproduce.study import Page, Table, Unit, carry_out, check, parser, publish, seeds, spread_of
from fedsim.errors import ConfigError


def options(tmp_path, *arguments):
    return parser("what it does").parse_args(["--out", str(tmp_path), "--workers", "1", *arguments])


def units(tmp_path, *keys):
    return [Unit(key, {"number": number}, tmp_path, 1, "cpu") for number, key in enumerate(keys)]


def test_units_are_computed_once_and_come_back_in_their_order(tmp_path):
    computed = []

    def work(unit):
        computed.append(unit.key)
        return [{"square": unit.settings["number"] ** 2}, {"square": 0}]

    carry_out(units(tmp_path, "a", "b"), work, options(tmp_path), {"seed": 0})
    entries = carry_out(units(tmp_path, "b", "a", "c"), work, options(tmp_path), {"seed": 0})
    assert computed == ["a", "b", "c"]
    assert [entry["unit"] for entry in entries] == ["b", "b", "a", "a", "c", "c"]
    assert [entry["square"] for entry in entries] == [1, 0, 0, 0, 4, 0]


def test_other_settings_want_another_folder(tmp_path):
    carry_out([], list, options(tmp_path), {"scale": "small"})
    with pytest.raises(ConfigError, match="scale=small there, paper now"):
        carry_out([], list, options(tmp_path), {"scale": "paper"})


KILLED = """
import os, signal, sys
from pathlib import Path
from experiments.reproduce.study import Unit, carry_out, parser

def work(unit):
    print(unit.key, flush=True)
    if unit.key == "b" and not Path(sys.argv[1], "again").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"done": unit.key}]

options = parser("").parse_args(["--out", sys.argv[1], "--workers", "1"])
units = [Unit(key, {}, options.out, 1, "cpu") for key in "abc"]
print([entry["done"] for entry in carry_out(units, work, options, {})])
"""


def test_a_killed_call_goes_on(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (killed.returncode, killed.stdout.split()[:1]) == (-signal.SIGKILL, ["a"])
    (tmp_path / "again").touch()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert [line for line in done.stdout.splitlines() if len(line) == 1] == ["b", "c"]
    assert done.stdout.splitlines()[-1] == "['a', 'b', 'c']"


def test_a_page_names_its_seeds_its_scale_and_what_differs(tmp_path):
    table = Table("t", "Numbers", ["attack", "PSNR"], [["a|b", "12.3"]], (["attack", "psnr"], [["a|b", 12.345]]))
    page = Page("page", "Paper", "What it is.", [table], ["A smaller model."], {"page.png": "curves"})
    path = publish(page, options(tmp_path), [3, 4], "python -m x --out DIR")
    text = path.read_text(encoding="utf-8")
    assert "| a\\|b | 12.3 |" in text
    assert "![curves](page.png)" in text
    assert "- A smaller model." in text
    assert "scale small · seeds 3, 4 · " in text
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == "attack,psnr\na|b,12.345\n"


def test_seeds_and_their_spread(tmp_path):
    assert seeds(options(tmp_path, "--seed", "5"), 2) == [5, 6]
    assert seeds(options(tmp_path, "--seeds", "3"), 2) == [0, 1, 2]
    assert spread_of([1.0, 3.0]) == "2.0 ± 1.4"
    assert spread_of([2.25], ".2f") == "2.25"


@pytest.mark.parametrize("setting", ["--seeds", "--threads", "--workers"])
def test_options_that_cannot_work(tmp_path, setting):
    with pytest.raises(ConfigError, match=setting):
        check(options(tmp_path, setting, "0"))
