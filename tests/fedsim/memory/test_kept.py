"""Memory that a process keeps, and objects that it no longer searches for cycles."""

import gc
import os
import platform
import subprocess
import sys

import pytest

from fedsim.memory.kept import KEPT_MEMORY, settle, settled

FAULTS = """
import ctypes, resource, sys
from fedsim.memory.kept import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def clients():
    updates = [libc.malloc(30 * 2**20) for _ in range(4)]
    for update in updates:
        ctypes.memset(update, 1, 30 * 2**20)
    for update in updates:
        libc.free(update)
clients()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    clients()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

LEFT = """
from pathlib import Path
from fedsim.memory.kept import give_back, keep_memory
keep_memory()
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
updates = [b"x" * number * 2**20 for number in range(21, 29)]
del updates
kept = resident()
give_back()
print(kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's mallopt")
@pytest.mark.subprocess
def test_what_one_client_freed_serves_the_next():
    environment = {name: value for name, value in os.environ.items() if name not in KEPT_MEMORY}
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how], env=environment, text=True))
        for how in ("kept", "given back")
    }
    assert faults["kept"] < 0.1 * faults["given back"]
    environment["GLIBC_TUNABLES"] = "glibc.malloc.trim_threshold=131072"
    theirs = int(subprocess.check_output([sys.executable, "-c", FAULTS, "kept"], env=environment, text=True))
    assert theirs > 0.5 * faults["given back"], "what a user has set stays"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc_trim")
@pytest.mark.subprocess
def test_what_another_run_has_left_is_given_back():
    assert int(subprocess.check_output([sys.executable, "-c", LEFT], text=True)) > 2**27


def test_what_there_is_is_left_out_of_the_search_for_the_block():
    gc.unfreeze()
    with settled():
        frozen = gc.get_freeze_count()
        later = [[] for _ in range(1000)]
        assert frozen > 1000
        assert gc.get_freeze_count() <= frozen
        assert any(item is later for item in gc.get_objects())
        with settled():
            pass
        assert gc.get_freeze_count() >= frozen, "what was left out before a block stays so"
    assert gc.get_freeze_count() == 0
    settle()  # as it was
