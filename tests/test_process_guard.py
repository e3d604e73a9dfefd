"""A test without a marker starts no Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STARTS = {
    "a list": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "a path": lambda: subprocess.Popen(Path(sys.executable)),
    "by name": lambda: subprocess.check_output(args=["x"], executable=sys.executable),
    "a fork": lambda: os.fork() or os._exit(0),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_test_without_a_marker_starts_no_python(start):
    with pytest.raises(AssertionError, match="it needs the marker `ray` or `subprocess`"):
        start()


def test_other_programs_may_start():
    assert subprocess.run(["true"], check=False).returncode == 0
