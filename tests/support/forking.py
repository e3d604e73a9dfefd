"""Processes forked from one that waits with libraries imported: each starts in no time.

A new Python imports torch, timm and Flower for five seconds. Whatever is called in its place runs this file, which
sends its words, environment and files to the process that waits (`serve`), which forks.
"""

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
LARGEST = 1 << 20
PATIENCE = 240.0
"""Seconds in which the one that waits has imported its libraries: some six, on an idle core."""
ASK = f"exec {{python}} -IS {__file__}"
"""Beginning of the line in a shell script that asks for a process: the address and the words follow."""

Call = dict[str, Any]
"""The `arguments`, `environment` and `folder` of whoever asks."""


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)


@contextlib.contextmanager
def server(module: str, address: Path, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """For the block the module, which calls `serve`, waits at this address."""
    command = [sys.executable, "-m", module, str(address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, env=environment) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


def load(libraries: Iterable[str]) -> None:
    """Import what every process needs."""
    del sys.path[0]  # the working folder, whose modules are no libraries
    for name in libraries:
        import_module(name)


def serve(answer: Callable[[socket.socket, Call, list[int]], NoReturn]) -> None:
    """Fork for each call, until standard input ends; `answer` is given the caller, what it asks for, and its files."""
    import gc

    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child of the past stays a zombie
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(sys.argv[1])
        door.listen(64)
        while True:
            ready, _, _ = select.select([door, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            caller, _ = door.accept()
            with caller:
                if os.fork() == 0:
                    door.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    data, files, _, _ = socket.recv_fds(caller, LARGEST, 3)
                    answer(caller, json.loads(data), files)


def become(call: Call, files: list[int]) -> None:
    """Take the caller's files, environment and folder."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for name in os.environ.keys() - call["environment"].keys():
        del os.environ[name]
    os.environ.update(call["environment"])
    os.chdir(call["folder"])


def run_and_exit(work: Callable[[], None], finish: Callable[[], None] = lambda: None) -> NoReturn:
    """Work, then end with its exit code; a fork must not go on as its parent."""
    code: object = 1
    try:
        work()
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code if stop.code is not None else 0
    except BaseException:  # noqa: BLE001 - as above
        traceback.print_exc()
    finally:
        finish()
        os._exit(code if isinstance(code, int) else 1)


def _ask(mode: str, address: str, *arguments: str) -> int:
    """Ask for a process; `wait`: send it the signals that come here, and end as it does."""
    call = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        _connect(caller, address)

        def forward(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(OSError):
                caller.send(str(number).encode())

        if mode == "wait":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, forward)
        socket.send_fds(caller, [json.dumps(call).encode()], [0, 1, 2])
        code = int(caller.recv(16) or b"1") if mode == "wait" else 0
    if code < 0:
        if -code != signal.SIGKILL:  # which nothing handles
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _connect(caller: socket.socket, address: str) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            caller.connect(address)
            return
        time.sleep(0.05)
    sys.exit(f"nobody waits at {address} after {PATIENCE:.0f} s")


if __name__ == "__main__":
    sys.exit(_ask(*sys.argv[1:]))
