"""A Python that has imported torch, timm and Flower as it starts.

A test of real processes starts many. In a block of `warm_python(folder)` the folder holds commands that look like
Python and its scripts, whose processes are forked; signals go there and exit codes come back. None of our own packages
is imported before.
"""

import contextlib
import os
import runpy
import select
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from tests.support.forking import ASK, Call, become, load, run_and_exit, serve, server, write_script

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


@contextlib.contextmanager
def warm_python(folder: Path, *scripts: str) -> Iterator[Path]:
    """Gives the folder's `python`; beside it are these scripts of the environment."""
    address, real = folder / "socket", Path(sys.executable)
    for name, command in {"python": real, **{script: real.parent / script for script in scripts}}.items():
        write_script(folder / name, f'{ASK.format(python=real)} wait {address} {command} "$@"')
    with server(__name__, address):
        yield folder / "python"


def _answer(caller: socket.socket, call: Call, files: list[int]) -> NoReturn:
    """Run what is asked for in a fork of this one; its end is told to the caller, whose end is its own."""
    child = os.fork()
    if child == 0:
        caller.close()
        _become(call, files)
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


def _become(call: Call, files: list[int]) -> NoReturn:
    os.setsid()
    become(call, files)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    run_and_exit(partial(_run, call["arguments"]), _finish)


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
    """`python … -m module …`, `python script …` or a script with its words."""
    command, *words = arguments
    if Path(command).name != Path(sys.executable).name:
        _run_script(arguments)
    if "-m" not in words:
        os.execvp = _run_worker  # type: ignore[assignment] - what Ray's preparation of a worker ends with
        _run_script(words)
    isolated = "-P" in words[: words.index("-m")]
    sys.argv = words[words.index("-m") + 1 :]
    if not isolated:
        sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _run_script(arguments: list[str]) -> NoReturn:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


def _run_worker(file: str, args: list[str]) -> NoReturn:
    """`bash -c "cd FOLDER && exec python default_worker.py …"` without another Python; the folder may be missing."""
    before, _, words = args[-1].partition("exec ")
    if before:
        os.chdir(shlex.split(before)[1])
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    _run_script(shlex.split(words)[1:])


if __name__ == "__main__":
    load(LIBRARIES)
    assert "ray" not in sys.modules, "its native code reads the environment as it is imported"
    serve(_answer)
