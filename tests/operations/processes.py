"""Process trees that are found again whatever becomes of their first process: each carries a mark in its environment.

Linux only: processes are read from /proc.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

MARK = "FEDSIM_BENCHMARK"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Process:
    """One that is alive.

    Attributes:
        title: its command line; a Ray worker's names what it is doing, as `ray::ClientWorker.run`.
    """

    pid: int
    parent: int
    title: str


class ProcessTree:
    """Starts processes that carry a mark, and so does all that they start; whatever carries it is ended with the block.

    Args:
        scratch: temporary files of Ray and of Python go here. Short: Ray's sockets have names of 107 bytes at most.
    """

    def __init__(self, scratch: Path) -> None:
        self._mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            MARK: self._mark,
            "SPT_NOENV": "1",  # else the titles of Ray's workers are written over their environment
            "RAY_TMPDIR": str(scratch),
            "TMPDIR": str(scratch),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()

    def start(
        self,
        *command: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        pipe: bool = False,
    ) -> subprocess.Popen[bytes]:
        """A process in a session of its own; both its outputs are added to `log`.

        Args:
            pipe: it is spoken to: standard input and output are pipes.
        """
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                env={**self._environment, **(environment or {})},
                cwd=cwd,
                stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def members(self, title: str = "") -> list[Process]:
        """Those alive whose title contains these words."""
        for process in self._started:
            process.poll()
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            if mark in _content(path / "environ").split(b"\0"):
                words = _content(path / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
                fields = _content(path / "stat").decode(errors="replace").rpartition(")")[2].split()
                if title in words and len(fields) > 1:
                    found.append(Process(int(path.name), int(fields[1]), words))
        return found

    def left_after(self, seconds: float, but: Collection[str] = ()) -> list[Process]:
        """Those that are still there once so much time has been given them to end by themselves.

        Args:
            but: those whose title contains any of these are not waited for.
        """

        def left() -> list[Process]:
            return [process for process in self.members() if not any(word in process.title for word in but)]

        deadline = time.monotonic() + seconds
        while (found := left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def end_all(self) -> None:
        while left := self.members():
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)
        for started in self._started:
            started.wait()
            for stream in (started.stdin, started.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):  # what was still to be written to one that is gone
                        stream.close()
        self._started.clear()


def hear_signals() -> None:
    """SIGINT and SIGTERM raise KeyboardInterrupt, so that everything is cleaned up after either.

    A shell lets what it starts in the background ignore SIGINT, and so does all that is started from there: processes
    started after this call hear it again.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def wait_until(happened: Callable[[], bool], seconds: float, what: str, pause: float = 0.02) -> None:
    """Raises TimeoutError, with `what` in its text."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


def _content(path: Path) -> bytes:
    """Nothing for a process that has ended, or is another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
