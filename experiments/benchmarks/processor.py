"""Processor time of a process and of all that it started; Linux, elsewhere 0."""

import os
from pathlib import Path

PROC = Path("/proc")


def seconds_of_tree(root: int, itself: bool = True) -> float:
    """Of all threads that are alive, of the process `root` and of those that it started, or that they did."""
    parents = {int(path.name): _parent(path) for path in PROC.glob("[0-9]*")}
    total = 0.0
    for process in parents:
        ancestor = process
        while ancestor > 1 and ancestor != root:
            ancestor = parents.get(ancestor, 0)
        if ancestor == root and (itself or process != root):
            total += _seconds(PROC / str(process))
    return total


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _seconds(process: Path) -> float:
    """By nanoseconds where the kernel counts them: a clock tick is as long as a small model's local steps."""
    total = 0.0
    for thread in process.glob("task/[0-9]*"):
        try:
            if (exact := thread / "schedstat").exists():
                total += int(exact.read_text(encoding="utf-8").split()[0]) / 1e9
            else:
                fields = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended
            continue
    return total
