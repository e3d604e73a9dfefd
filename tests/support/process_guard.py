"""Tests say by their marker that they start processes: `make check` leaves those out."""

import os
import subprocess
import sys
from typing import Any


class ProcessGuard:
    """While `test` is set, whoever starts this environment's Python or Ray, or forks, fails.

    Other programs may start: libraries ask the system for its fonts and processors. An audit hook would see more, and
    be called at every `id()` and attribute of a frame: a tenth of the suite's time.
    """

    def __init__(self) -> None:
        self.test: str | None = None
        self._fork, self._execute = os.fork, subprocess.Popen._execute_child
        os.fork = self.fork
        guard = self

        def execute_child(child: Any, args: Any, executable: Any, *others: Any) -> Any:
            first = args if isinstance(args, str | bytes | os.PathLike) else next(iter(args), "")
            guard.check(os.fsdecode(first if executable is None else executable))
            return guard._execute(child, args, executable, *others)

        subprocess.Popen._execute_child = execute_child

    def fork(self) -> int:
        self.check(sys.prefix)
        return self._fork()

    def check(self, program: str) -> None:
        """Raises AssertionError: the test that runs may not start this program."""
        if self.test is not None and program.startswith((sys.prefix, os.path.realpath(sys.prefix))):
            raise AssertionError(f"{self.test} starts {program}: it needs the marker `ray` or `subprocess`")
