"""A study says at once what it does, and Ctrl-C is one line from the first moment."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.commands.stage import STUDY, CommandStage


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


def test_a_study_goes_on_with_the_same_words(tmp_path: Path):
    stage = CommandStage(STUDY)
    assert stage.interrupted() == "interrupted before anything started"
    stage.begin(tmp_path / "not there yet")
    assert stage.interrupted() == "interrupted: the same command goes on from here"
