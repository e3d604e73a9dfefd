"""Tasks over processes: what a failure leaves, and what a killed parent leaves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.studies.harness.processes import spread
from fedsim.errors import RunError

pytestmark = pytest.mark.subprocess

PARENT = """
import os, pathlib, signal, sys, time
from experiments.studies.harness.processes import spread

def work(task):
    pathlib.Path(task, str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's background job
    list(spread(work, [(number, sys.argv[1]) for number in range(4)], 2))
"""


def slow_or_failing(task):
    """`fail` fails at once; the others come back later, after they have left a mark."""
    word, folder = task
    if word == "fail":
        Path(folder, "failed").touch()
        raise RunError("it is full")
    deadline = time.monotonic() + 60
    while not Path(folder, "failed").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    return word


@pytest.mark.timeout(300)
def test_what_is_under_way_when_one_fails_is_kept(tmp_path):
    todo = [(word, (word, str(tmp_path))) for word in ("slow", "fail", *"abcdefgh")]
    found = []
    results = spread(slow_or_failing, todo, 2)
    with pytest.raises(RunError, match="fail: it is full"):
        found.extend(key for key, _ in results)
    assert "slow" in found
    assert len(found) < 8  # no others are begun


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_workers_end_with_their_parent(how, tmp_path):
    script, marks = tmp_path / "parent.py", tmp_path / "marks"
    script.write_text(PARENT, encoding="utf-8")
    marks.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(marks)]) as parent:
        try:
            until(lambda: len(list(marks.iterdir())) == 2 or parent.poll() is not None, 120)
            workers = [int(mark.name) for mark in marks.iterdir()]
            assert parent.poll() is None
            assert len(workers) == 2
            assert all(map(runs, workers))
            parent.send_signal(how)
            until(lambda: parent.poll() is not None, 60)
            assert parent.poll() is not None, "it waits for what its workers are at"
        finally:
            parent.kill()
    until(lambda: not any(map(runs, workers)), 60)
    assert not any(map(runs, workers))


def runs(process):
    """A zombie that nobody waits for does not."""
    try:
        os.kill(process, 0)
        return ") Z " not in Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc, or gone between the two
        return sys.platform != "linux"


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
