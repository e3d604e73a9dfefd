"""Ray's workers forked from one process that has imported torch, timm and fedsim: each starts in no time.

A Ray of the tests starts hundreds of workers, each a new Python that imports the same libraries for five seconds. In a
block of `preloaded_workers()` a raylet calls this file in the place of its interpreter; for a worker it sends its
arguments, environment and files to the process that waits with everything imported, which forks. All else, and workers
of other jobs than the first, start as ever.
"""

import contextlib
import json
import os
import runpy
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

PRELOADED = (
    "timm",
    "datasets",
    "sklearn.datasets",
    "clients.app",
    "attacks.attack",
    "experiments.audit.command",
    "experiments.matrix.command",
)
WORKER = "/default_worker.py"
"""Ray's own script of a worker."""
FIRST_JOB = "01000000"
SHIM = """#!/bin/sh
case "$RAY_JOB_ID $*" in
  {job}*{worker}*) exec {python} -IS {script} {address} "$@" ;;
esac
exec {python} "$@"
"""
LARGEST = 1 << 20


@contextlib.contextmanager
def preloaded_workers(folder: Path) -> Iterator[None]:
    """Rays that this process starts in the block take their workers from a process that has imported what they need."""
    from ray._private import services

    address, shim = folder / "socket", folder / "python"
    shim.write_text(SHIM.format(python=sys.executable, script=__file__, address=address, job=FIRST_JOB, worker=WORKER))
    shim.chmod(stat.S_IRWXU)
    start, real = services.start_raylet, sys.executable
    servers: list[subprocess.Popen] = []

    def start_raylet(*arguments, **settings):
        sys.executable = str(shim)
        try:
            raylet = start(*arguments, **settings)
        finally:
            sys.executable = real
        servers.append(_start_server(address, raylet.process.pid))
        return raylet

    services.start_raylet = start_raylet
    try:
        yield
    finally:
        services.start_raylet = start
        for server in servers:
            with server:
                server.stdin.close()


def _start_server(address: Path, raylet: int) -> subprocess.Popen:
    """Ray's native code reads its environment once, as it is imported: it is that of the workers of the first job."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(raylet)}
    return subprocess.Popen([sys.executable, __file__, str(address)], stdin=subprocess.PIPE, env=environment)


def _serve(address: str) -> None:
    """Fork a worker for each call, until standard input ends."""
    import gc
    import select
    from importlib import import_module

    del sys.path[0]  # this folder, whose modules are no libraries
    for name in PRELOADED:
        import_module(name)
    sys.modules["fedsim.data.embedded"].Digits().load()  # kept: each worker would encode them anew
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no worker of the past stays a zombie
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address)
        door.listen(64)
        while True:
            ready, _, _ = select.select([door, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            caller, _ = door.accept()
            with caller:
                data, files, _, _ = socket.recv_fds(caller, LARGEST, 3)
                if os.fork() == 0:
                    door.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _become_worker(json.loads(data), files)
                for file in files:
                    os.close(file)


def _become_worker(call: dict, files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for name in os.environ.keys() - call["environment"].keys():
        del os.environ[name]
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.argv = call["arguments"][next(i for i, one in enumerate(call["arguments"]) if one.endswith(WORKER)) :]
    code: object = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _ask(address: str, arguments: list[str]) -> None:
    call = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        _connect(caller, address)
        socket.send_fds(caller, [json.dumps(call).encode()], [0, 1, 2])


def _connect(caller: socket.socket, address: str) -> None:
    for _ in range(1200):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            caller.connect(address)
            return
        time.sleep(0.05)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _ask(sys.argv[1], sys.argv[2:])
    else:
        _serve(sys.argv[1])
