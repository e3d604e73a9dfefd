"""Processes forked from one Python that has imported torch, timm and Flower: each starts in no time.

A test of real processes starts many, each a new Python that imports the same libraries for five seconds. In a block of
`warm_python(folder)` the folder holds commands that look like Python and its scripts. Called, they send their words,
environment and files to the process that waits with the libraries imported, which forks; signals go there and exit
codes come back. None of our own packages is imported before.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

LIBRARIES = (
    "datasets",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.supernode.cli",
    "flwr.superlink.cli",
    "flwr_datasets.partitioner",
    "hydra",
    "matplotlib.backends.backend_svg",
    "omegaconf",
    "rich.progress",
    "safetensors.torch",
    "sklearn.datasets",
    "timm",
    "torchvision.transforms.v2",
)
SHIM = '#!/bin/sh\nexec {python} -IS {script} {address} {command} "$@"\n'
LARGEST = 1 << 20


@contextlib.contextmanager
def warm_python(folder: Path, *scripts: str) -> Iterator[Path]:
    """Gives the folder's `python`; beside it are these scripts of the environment."""
    address, real = folder / "socket", Path(sys.executable)
    for name, command in {"python": real, **{script: real.parent / script for script in scripts}}.items():
        shim = folder / name
        shim.write_text(SHIM.format(python=real, script=__file__, address=address, command=command))
        shim.chmod(stat.S_IRWXU)
    server = subprocess.Popen([sys.executable, __file__, str(address)], stdin=subprocess.PIPE)
    with server:
        try:
            yield folder / "python"
        finally:
            assert server.stdin is not None
            server.stdin.close()


def _serve(address: str) -> None:
    """Fork for each call, until standard input ends."""
    import gc

    del sys.path[0]  # this folder, whose modules are no libraries
    for name in LIBRARIES:
        import_module(name)
    assert "ray" not in sys.modules, "its native code reads the environment as it is imported"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child of the past stays a zombie
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address)
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
                    _answer(caller)


def _answer(caller: socket.socket) -> NoReturn:
    """Run what is asked for in a fork of this one; its end is told to the caller, whose end is its own."""
    data, files, _, _ = socket.recv_fds(caller, LARGEST, 3)
    child = os.fork()
    if child == 0:
        caller.close()
        _become(json.loads(data), files)
    for file in files:
        os.close(file)
    end = os.pidfd_open(child)
    while True:
        ready, _, _ = select.select([end, caller], [], [])
        if end in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                caller.send(str(code).encode())
            os._exit(0)
        number = caller.recv(16)
        os.kill(child, int(number) if number else signal.SIGKILL)
        if not number:
            os._exit(0)


def _become(call: dict[str, Any], files: list[int]) -> NoReturn:
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name in os.environ.keys() - call["environment"].keys():
        del os.environ[name]
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    code: object = 1
    try:
        _run(call["arguments"])
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code if stop.code is not None else 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        _finish()
        os._exit(code if isinstance(code, int) else 1)


def _finish() -> None:
    """As Python ends: threads are waited for, what was registered is called."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()


def _run(arguments: list[str]) -> None:
    """`python … -m module …` or a script with its words."""
    command, *words = arguments
    if Path(command).name != Path(sys.executable).name:
        sys.argv = arguments
        runpy.run_path(command, run_name="__main__")
        return
    isolated = "-P" in words[: words.index("-m")]
    sys.argv = words[words.index("-m") + 1 :]
    if not isolated:
        sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _ask(address: str, arguments: list[str]) -> int:
    call = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        _connect(caller, address)

        def forward(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(OSError):
                caller.send(str(number).encode())

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, forward)
        socket.send_fds(caller, [json.dumps(call).encode()], [0, 1, 2])
        code = int(caller.recv(16) or b"1")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _connect(caller: socket.socket, address: str) -> None:
    for _ in range(1200):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            caller.connect(address)
            return
        time.sleep(0.05)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
    _serve(sys.argv[1])
