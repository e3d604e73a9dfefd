"""Memory that comes and goes with each client: kept by the process, and not searched for cycles over and over."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

KEPT_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20),
}
"""For glibc: a worker keeps up to 512 MiB of what it freed. A model's tensors come and go with each client, and what is
given back to the system has to be faulted in again, page by page. One arena, since each keeps its own: what one thread
of a worker freed serves the next."""

PARAMETERS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
"""Their numbers in glibc's malloc.h."""


def keep_memory() -> None:
    """Set both thresholds of `KEPT_MEMORY` for this process too: glibc reads the environment once, at its start.

    What a user has set is left as it is. Without glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for name, number in PARAMETERS.items():
        if os.environ.get(name, KEPT_MEMORY[name]) == KEPT_MEMORY[name]:
            mallopt(number, int(KEPT_MEMORY[name]))


def give_back() -> None:
    """Leave to the system what was kept and nobody needs, such as what another run of this process has left."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def settle() -> None:
    """Leave what there is now, libraries mostly, out of Python's searches for cycles: they are what takes the time."""
    gc.collect()
    gc.freeze()


@contextmanager
def settled() -> Iterator[None]:
    """Keep memory for the block. A search takes milliseconds in it, and Flower's records make cycles of whole updates.

    Where something was left out before the block, all stays so: Python cannot take back a part.
    """
    before = gc.get_freeze_count()
    settle()
    try:
        yield
    finally:
        if not before:
            gc.unfreeze()
