"""A round's line: parts that add up, and numbers only where there is something to measure."""

import time

from fedsim.memory.peak import Memory
from fedsim.simulation.traffic import Traffic
from server.timing import GIB, Stopwatch, timings


def test_a_stopwatch_adds_blocks_up_and_begins_again():
    watch = Stopwatch()
    for _ in range(2):
        with watch.running():
            time.sleep(0.01)
    assert watch.take() >= 0.02
    assert watch.take() == 0.0


def test_what_happens_during_training_is_not_counted_twice():
    laps = {"configure": 1.0, "train": 4.0, "aggregate": 2.0}
    row = timings(3, 10.0, laps, Traffic(0.5, 0.25, Memory(2 * GIB, GIB)), Memory(3 * GIB), 8, {"attacks_waiting": 2})
    assert row["seconds"] == 7.0
    assert (row["send"], row["receive"]) == (0.5, 0.25)
    assert row["clients_per_second"] == 2.0
    assert (row["worker_memory_gib"], row["gpu_memory_gib"]) == (2.0, 1.0)
    assert row["memory_gib"] == 3.0
    assert row["attacks_waiting"] == 2


def test_what_was_not_measured_is_left_out():
    row = timings(0, 1.0, {"evaluate": 0.5}, None, Memory(), None, {})
    assert set(row) == {"round", "seconds", "since_start", "evaluate"}
    assert "worker_memory_gib" not in timings(1, 1.0, {"train": 1.0}, Traffic(), Memory(1), 1, {})
