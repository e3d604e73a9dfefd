"""The peak grows with what a process holds, and whoever asks often is answered from before."""

import subprocess
import sys

import pytest

from fedsim.memory import peak as memory
from fedsim.memory.peak import Memory, Meter, PeakMemory, peak_memory

HOLDING = """
from fedsim.memory.peak import peak_memory
before = peak_memory().resident
held = bytearray(b"x") * (before + 2**23)
assert peak_memory().resident > max(before, len(held)), (before, len(held), peak_memory().resident)
"""
"""To be run by a small process: in a large one so much more is gigabytes."""


@pytest.mark.subprocess
def test_the_peak_grows_with_what_is_held():
    done = subprocess.run([sys.executable, "-c", HOLDING], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_without_proc_the_system_is_asked(monkeypatch, tmp_path):
    known = peak_memory().resident
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    assert peak_memory().resident >= 0.9 * known


def test_a_run_has_a_peak_of_its_own(monkeypatch, tmp_path):
    status, clear = tmp_path / "status", tmp_path / "clear_refs"
    monkeypatch.setattr(memory, "STATUS", status)
    monkeypatch.setattr(memory, "CLEAR", clear)
    status.write_text("VmHWM:\t 900 kB\n")
    peak = PeakMemory()
    assert clear.read_bytes() == b"5"
    status.write_text("VmHWM:\t 300 kB\n")
    assert peak.read().resident == 300 * 1024


def test_where_a_peak_cannot_begin_anew_it_is_known_once_it_grows(monkeypatch, tmp_path):
    status = tmp_path / "status"
    monkeypatch.setattr(memory, "STATUS", status)
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "none" / "clear_refs")
    status.write_text("VmHWM:\t 900 kB\n")
    peak = PeakMemory()
    assert peak.read().resident == 0
    status.write_text("VmHWM:\t 901 kB\n")
    assert peak.read().resident == 901 * 1024


def test_of_two_the_larger_counts():
    assert Memory(1, 5) | Memory(3, 2) == Memory(3, 5)


def test_a_meter_looks_now_and_then(monkeypatch):
    looks = iter([Memory(1), Memory(2)])
    now = iter([100.0, 100.1, 100.3])
    monkeypatch.setattr(memory, "peak_memory", lambda: next(looks))
    monkeypatch.setattr(memory.time, "monotonic", lambda: next(now))
    meter = Meter()
    assert [meter.read() for _ in range(3)] == [Memory(1), None, Memory(2)]
