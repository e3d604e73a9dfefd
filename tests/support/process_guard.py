"""Tests say by their marker that they start processes: `make check` leaves those out."""

import os
import sys
from typing import Any


class ProcessGuard:
    """While `test` is set, whoever starts this environment's Python or Ray, or forks, fails.

    Other programs may start: libraries ask the system for its fonts and processors.
    """

    def __init__(self) -> None:
        self.test: str | None = None
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.test is None or event not in ("os.fork", "subprocess.Popen"):
            return
        program = sys.prefix if event == "os.fork" else os.fsdecode(arguments[0] or "")
        if program.startswith((sys.prefix, os.path.realpath(sys.prefix))):
            raise AssertionError(f"{self.test} starts {program}: it needs the marker `ray` or `subprocess`")
