"""How much memory a process has needed at most."""

import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Memory:
    """The most that a process, or any of several, has held at a time so far, in bytes.

    Attributes:
        resident: in RAM, shared libraries included.
        cuda: allocated by torch on its current GPU; 0 without one.
    """

    resident: int = 0
    cuda: int = 0

    def __or__(self, other: "Memory") -> "Memory":
        """The larger of both."""
        return Memory(max(self.resident, other.resident), max(self.cuda, other.cuda))


def peak_memory() -> Memory:
    """Peak memory of this process since it began."""
    # Initialised, not just there: a look must not start CUDA in a process that uses none.
    cuda = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    return Memory(_resident(), cuda)


class PeakMemory:
    """Peak memory of this process from here on: several runs of one process have one each.

    Linux counts anew when it is asked to. Elsewhere `resident` is known as soon as it is more than ever before, and 0
    until then.
    """

    def __init__(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        self._before = 0 if _counted_anew() else _resident()

    def read(self) -> Memory:
        peak = peak_memory()
        return peak if peak.resident > self._before else replace(peak, resident=0)


class Meter:
    """`peak_memory` for those who ask often: an answer every `SECONDS_BETWEEN_LOOKS`, None between."""

    def __init__(self) -> None:
        self._next = 0.0

    def read(self) -> Memory | None:
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + SECONDS_BETWEEN_LOOKS
        return peak_memory()


def _counted_anew() -> bool:
    """Whether VmHWM begins again at what is held now; proc(5) has the number."""
    try:
        CLEAR.write_bytes(b"5")
    except OSError:
        return False
    return True


def _resident() -> int:
    """From /proc where there is one: getrusage counts the process that started this one as well."""
    try:
        status = STATUS.read_bytes()
    except OSError:
        status = b""
    _, found, rest = status.partition(b"VmHWM:")
    if found:
        return int(rest.split(maxsplit=1)[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
