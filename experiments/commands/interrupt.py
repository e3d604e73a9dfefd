"""Ctrl-C, or SIGTERM: one line, and the shell again within three seconds, whatever the process is at."""

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from experiments.commands.stage import CommandStage

CODE = 130
"""As shells have it: 128 and the number of Ctrl-C's signal."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What Ctrl-C sends, and what kill, systemd and Slurm do."""

SECONDS_TO_CLOSE = 2.0
"""For files and workers to be left in order. What is on disk by then is whole: runs survive SIGKILL."""

SHOW_CURSOR = b"\x1b[?25h"
"""A bar that was cut off leaves it hidden."""


class CtrlC:
    """While a command runs: the first Ctrl-C interrupts it, and ends it where it does not come to its end by itself.

    Before its work has begun nothing has to be left in order, and the process ends at once: imports would turn an
    exception into pages of traceback. A second Ctrl-C ends it at once, too. Watched by a thread: torch's long calls and
    imports keep Python from handling signals in the main one. SIGTERM counts as Ctrl-C.
    """

    def __init__(self, stage: CommandStage) -> None:
        self._stage = stage
        self._error = os.dup(2)  # libraries that are to be quiet have theirs turned elsewhere
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        for number in SIGNALS:
            signal.signal(number, self._handle)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget)
        threading.Thread(target=self._watch, name="Ctrl-C", daemon=True).start()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stage.open:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        while os.read(self._read, 1)[0] not in SIGNALS:
            pass
        if self._stage.open:
            select.select([self._read], [], [], SECONDS_TO_CLOSE)  # until a second one
        with suppress(OSError):  # the main thread may be at the same folder
            self._stage.discard()
        self._end()

    def _end(self) -> NoReturn:
        # Written below Python's streams, whose locks the main thread may hold.
        if os.isatty(self._error):
            os.write(self._error, SHOW_CURSOR + b"\n")
        os.write(self._error, f"{self._stage.interrupted()}\n".encode(sys.stderr.encoding or "utf-8", "replace"))
        os._exit(CODE)


def _forget() -> None:
    """A pool's process is ended by SIGTERM, which is nothing to the command: they would share the pipe."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
