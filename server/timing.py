"""What of a round depends on the clock and the machine: a line of timings.jsonl, apart from what a seed decides."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedsim.memory.peak import Memory
from fedsim.simulation.traffic import Traffic

GIB = 2**30


class Stopwatch:
    """Adds up the seconds of blocks that run between two looks."""

    def __init__(self) -> None:
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        before = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - before

    def take(self) -> float:
        """Seconds since the last look."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def timings(
    server_round: int,
    since_start: float,
    laps: Mapping[str, float],
    traffic: Traffic | None,
    memory: Memory,
    clients: int | None,
    gauges: Mapping[str, int | float],
) -> dict[str, int | float]:
    """A round's line.

    Args:
        laps: seconds by what they were spent on, one after the other; `seconds` is their sum.
        traffic: of the instructions to train. `send` and `receive` are parts of `train`, which lasts from the first
            message to the last reply.
        memory: that the server has needed so far.
        clients: that answered.
        gauges: further numbers at the end of the round, by name.
    """
    row: dict[str, int | float] = {"round": server_round, "seconds": sum(laps.values()), "since_start": since_start}
    row |= laps
    needed = {"memory_gib": memory.resident}
    if traffic is not None:
        row |= {"send": traffic.send, "receive": traffic.receive}
        needed |= {"worker_memory_gib": traffic.workers.resident}
        memory |= traffic.workers
    needed |= {"gpu_memory_gib": memory.cuda}
    if clients and laps.get("train"):
        row["clients_per_second"] = clients / laps["train"]
    return {**row, **{name: size / GIB for name, size in needed.items() if size}, **gauges}
