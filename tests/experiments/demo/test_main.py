"""Before anything heavy is imported the demo says what it does, and Ctrl-C is one line."""

import signal
import subprocess
import sys

import pytest


@pytest.mark.subprocess
def test_ctrl_c_while_libraries_are_loaded_is_one_line(tmp_path):
    call = [sys.executable, "-m", "experiments.demo", str(tmp_path / "demo")]
    with subprocess.Popen(call, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "loading PyTorch, timm and Flower …\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted before anything started\n"
        assert process.wait(timeout=20) == 130
    assert not (tmp_path / "demo").exists()
