"""What reproductions have in common: units are computed once, and pages say what they are."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from experiments.studies.harness import study
from experiments.studies.harness.options import folder, parser
from experiments.studies.harness.study import (
    Page,
    Table,
    Unit,
    carry_out,
    check,
    command_of,
    counted,
    publish,
    seeds,
    spread_of,
)
from fedsim.errors import ConfigError, RunError


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


def test_a_result_that_is_no_number_is_named_and_the_others_are_kept(tmp_path):
    def work(unit):
        return [{"psnr": 10.0 if unit.key == "a" else float("nan"), "arm": unit.key}]

    with pytest.raises(RunError, match="b: psnr is not finite"):
        carry_out(units(tmp_path, "a", "b"), work, options(tmp_path), {})
    assert [entry["arm"] for entry in carry_out(units(tmp_path, "a"), pytest.fail, options(tmp_path), {})] == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
from experiments.studies.harness.study import Unit, carry_out
from experiments.studies.harness.options import parser

def work(unit):
    print(unit.key, flush=True)
    if unit.key == "b" and not Path(sys.argv[1], "again").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"done": unit.key}]

options = parser("").parse_args(["--out", sys.argv[1], "--workers", "1"])
units = [Unit(key, {}, options.out, 1, "cpu") for key in "abc"]
print([entry["done"] for entry in carry_out(units, work, options, {})])
"""


@pytest.mark.subprocess
def test_a_killed_call_goes_on(warm, tmp_path):
    script = tmp_path / "call.py"
    script.write_text(KILLED)
    command = [warm, script, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    killed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (killed.returncode, killed.stdout.split()[:1]) == (-signal.SIGKILL, ["a"])
    (tmp_path / "again").touch()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert [line for line in done.stdout.splitlines() if len(line) == 1] == ["b", "c"]
    assert done.stdout.splitlines()[-1] == "['a', 'b', 'c']"


def test_a_page_names_its_seeds_its_scale_and_what_differs(tmp_path):
    table = Table("t", "Numbers", ["attack", "PSNR"], [["a|b", "12.3"]], (["attack", "psnr"], [["a|b", 12.345]]))
    page = Page("page", "Paper", "What it is.", [table], ["A smaller model."], {"page.png": "curves"})
    entries = [{"unit": "a", "by": "commit 1 on 2 CPU cores"}, {"unit": "a", "by": "commit 1 on 2 CPU cores"}]
    path = publish(page, options(tmp_path), [3, 4], parser(""), entries)
    text = path.read_text(encoding="utf-8")
    assert "| a\\|b | 12.3 |" in text
    assert "![curves](page.png)" in text
    assert "- A smaller model." in text
    assert "python -m experiments.studies.page --out DIR --workers 1\n" in text
    assert "scale small · seeds 3, 4 · commit 1 on 2 CPU cores\n" in text
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


def broken(unit):
    if unit.key == "b":
        raise {"fault": TypeError("no number"), "setting": ConfigError("--x", 1, "2")}[unit.settings["kind"]]
    return [{"done": unit.key}]


def test_a_failure_names_its_unit(tmp_path):
    def asked(kind):
        return [Unit(key, {"kind": kind}, tmp_path, 1, "cpu") for key in "abc"]

    with pytest.raises(RunError, match="b: --x=1: must be 2"):
        carry_out(asked("setting"), broken, options(tmp_path), {})
    with pytest.raises(TypeError) as caught:
        carry_out(asked("fault"), broken, options(tmp_path), {})
    assert caught.value.__notes__ == ["in b"]
    assert [json.loads(line)["unit"] for line in (tmp_path / "results.jsonl").read_text().splitlines()] == ["a"]


def test_a_page_says_who_computed_its_numbers(tmp_path, monkeypatch):
    def work(unit):
        return [{"number": 1}]

    monkeypatch.setattr(study, "_commit", lambda: "commit old")
    monkeypatch.setattr(study, "_place", lambda device: "a GPU")
    carry_out(units(tmp_path, "a", "b"), work, options(tmp_path), {})
    monkeypatch.setattr(study, "_commit", lambda: "commit new")
    monkeypatch.setattr(study, "_place", lambda device: "2 CPU cores")
    entries = carry_out(units(tmp_path, "a", "b", "c"), work, options(tmp_path), {})
    assert [entry["by"] for entry in entries] == ["commit old on a GPU"] * 2 + ["commit new on 2 CPU cores"]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for name in ("by", "call", "after"):
        assert [line[name] for line in lines] == [entry[name] for entry in entries]
    assert lines[0]["call"] == lines[1]["call"] != lines[2]["call"]
    assert 0.0 <= lines[0]["after"] <= lines[1]["after"]
    stamped = study.stamp(options(tmp_path), [0], entries)
    assert "commit old on a GPU (2 units) · commit new on 2 CPU cores (1 units)" in stamped
    assert " · commit old on a GPU · " in study.stamp(options(tmp_path), [0], entries[:1])


def test_a_page_says_how_long_its_numbers_took(tmp_path):
    """Of each call what had passed at its last unit, whichever unit the page names last."""

    def stamped(*ends):
        entries = [{"unit": "a", "by": "x", "call": call, "after": after} for call, after in ends]
        return study.stamp(options(tmp_path), [0], entries)

    assert stamped(("1", 200.0), ("1", 700.0), ("1", 300.0), ("2", 500.0)).endswith(" · 20 min")
    assert stamped(("1", 12.3)).endswith(" · 12 s")
    unknown = [{"unit": "a", "by": "x", "call": "1", "after": 90.0}, {"unit": "b", "by": "x"}]
    assert study.stamp(options(tmp_path), [0], unknown).endswith(" · x")


def test_the_command_is_the_one_that_was_called(tmp_path):
    found = parser("", "a folder")
    found.add_argument("--checkpoint", type=folder)
    found.add_argument("--variants", nargs="+")
    weights = tmp_path / "weights"
    weights.touch()
    words = ["--pictures", str(tmp_path), "--out", str(tmp_path / "out")]
    assert command_of("x", found, found.parse_args(words)) == (
        "python -m experiments.studies.x --pictures DIR --out DIR"
    )
    words += ["--variants", "A", "J@*", "--seed", "3", "--workers", "2", "--checkpoint", str(weights)]
    assert command_of("x", found, found.parse_args([*words, "--scale", "paper"])) == (
        "python -m experiments.studies.x --pictures DIR --out DIR --scale paper --seed 3 --workers 2 "
        "--checkpoint FILE --variants A 'J@*'"
    )


def test_counts_stand_beside_what_is_not_of_all():
    assert (counted("1.0", 3, 3), counted("1.0", 2, 3)) == ("1.0", "1.0 (2 of 3)")
