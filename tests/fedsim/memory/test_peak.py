"""The peak grows with what a process holds, and whoever asks often is answered from before."""

import numpy as np

from fedsim.memory import peak as memory
from fedsim.memory.peak import Memory, Meter, peak_memory


def test_the_peak_grows_with_what_is_held():
    before = peak_memory().resident
    held = np.ones(before // 8 + 2**20)
    assert peak_memory().resident > max(before, held.nbytes)


def test_without_proc_the_system_is_asked(monkeypatch, tmp_path):
    known = peak_memory().resident
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    assert peak_memory().resident >= 0.9 * known


def test_of_two_the_larger_counts():
    assert Memory(1, 5) | Memory(3, 2) == Memory(3, 5)


def test_a_meter_looks_now_and_then(monkeypatch):
    looks = iter([Memory(1), Memory(2)])
    now = iter([100.0, 100.1, 100.3])
    monkeypatch.setattr(memory, "peak_memory", lambda: next(looks))
    monkeypatch.setattr(memory.time, "monotonic", lambda: next(now))
    meter = Meter()
    assert [meter.read() for _ in range(3)] == [Memory(1), None, Memory(2)]
