"""Memory that comes and goes with each client: kept by the process, and not searched for cycles over and over."""

import atexit
import ctypes
import gc
import os

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
    """For this process what `KEPT_MEMORY` is for those that it starts: glibc reads the environment once.

    A user's own settings win. Without glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    for name, number in PARAMETERS.items():
        value = os.environ.get(name, KEPT_MEMORY[name])
        if mallopt is not None and value.isdecimal():
            mallopt(number, ctypes.c_int(min(int(value), 2**31 - 1)))


def settle() -> None:
    """Leave what there is now, libraries mostly, out of Python's searches for cycles: they are what takes the time.

    Until the process ends: some libraries complain where the last search leaves anything of theirs.
    """
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)


def free_cycles() -> None:
    """Search for cycles now, where that takes milliseconds: Flower's records make some, around whole updates."""
    if gc.get_freeze_count() > 0:
        gc.collect()
