"""A test without the marker of those that start processes cannot start one."""

import os
import subprocess
import sys

import pytest


def test_neither_python_nor_a_fork():
    with pytest.raises(AssertionError, match=r"starts .* it needs the marker `ray` or `subprocess`"):
        subprocess.run([sys.executable, "-c", ""], check=False)
    with pytest.raises(AssertionError, match="needs the marker"):
        subprocess.Popen("pretend", executable=sys.executable)
    with pytest.raises(AssertionError, match="needs the marker"):
        os.fork()


def test_other_programs_may_start():
    assert subprocess.run(["true"], check=False).returncode == 0


@pytest.mark.subprocess
def test_a_marked_test_starts_python():
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
