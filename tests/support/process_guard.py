"""Tests say by their marker that they start processes: `make check` leaves those out."""

import functools
import os
import subprocess
import sys
from typing import Any


class ProcessGuard:
    """While `test` is set, whoever starts this environment's Python or Ray, or forks, fails.

    Other programs may start: libraries ask the system for its fonts and processors. No audit hook: Python would call
    it at each `id`, which makes copies five times as slow and the tests by a sixth.
    """

    def __init__(self) -> None:
        self.test: str | None = None
        fork, start = os.fork, subprocess.Popen.__init__

        @functools.wraps(fork)
        def watched_fork() -> int:
            self._check(sys.prefix)
            return fork()

        @functools.wraps(start)
        def watched_start(
            process: Any, args: Any, size: int = -1, executable: Any = None, *more: Any, **how: Any
        ) -> None:
            alone = isinstance(args, str | bytes | os.PathLike)
            self._check(os.fsdecode(executable or (args if alone else args[0])))
            start(process, args, size, executable, *more, **how)

        os.fork = watched_fork
        subprocess.Popen.__init__ = watched_start  # type: ignore[method-assign]

    def _check(self, program: str) -> None:
        if self.test is not None and program.startswith((sys.prefix, os.path.realpath(sys.prefix))):
            raise AssertionError(f"{self.test} starts {program}: it needs the marker `ray` or `subprocess`")
