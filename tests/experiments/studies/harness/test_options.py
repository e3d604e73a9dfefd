"""A study says at once what it does, and Ctrl-C is one line from the first moment."""

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from experiments.commands.stage import STUDY, CommandStage
from experiments.studies.harness.options import parser


@pytest.mark.subprocess
def test_ctrl_c_while_libraries_are_loaded_is_one_line(tmp_path):
    call = [sys.executable, "-m", "experiments.studies.withholding", "--out", str(tmp_path / "out")]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading PyTorch, timm and Flower …\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted before anything started\n"
        assert process.wait(timeout=20) == 130
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["second_order", "finetune", "rounds", "realism"])
def test_a_study_of_one_seed_takes_no_number_of_seeds(name, capsys):
    options = import_module(f"experiments.studies.{name}.options").arguments()
    with pytest.raises(SystemExit):
        options.parse_args(["--out", "out", "--seeds", "2"])
    assert "unrecognized arguments: --seeds 2" in capsys.readouterr().err
    assert parser("").parse_args(["--out", "out", "--seeds", "2"]).seeds == 2


def test_a_study_goes_on_with_the_same_words(tmp_path: Path):
    stage = CommandStage(STUDY)
    assert stage.interrupted() == "interrupted before anything started"
    stage.begin(tmp_path / "not there yet")
    assert stage.interrupted() == "interrupted: the same command goes on from here"
