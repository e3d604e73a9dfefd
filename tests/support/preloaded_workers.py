"""Ray's workers forked from one process that has imported torch, timm and fedsim.

A Ray of the tests starts hundreds of workers. In a block of `preloaded_workers()` a raylet calls a script in the place
of its interpreter, which has workers forked. Workers of other jobs than the first are started by an executable `OTHERS`
in the folder, if there is one, for example that of `warm_python`; they and all else start as ever without.
"""

import contextlib
import os
import runpy
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.support.forking import ASK, Call, become, load, run_and_exit, serve, server, write_script

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
OTHERS = "python-of-others"
SHIM = """case "$RAY_JOB_ID $*" in
  {job}*{worker}*) {ask} go {address} "$@" ;;
  *{worker}*) [ -x {others} ] && exec {others} "$@" ;;
esac
exec {python} "$@"
"""


@contextlib.contextmanager
def preloaded_workers(folder: Path) -> Iterator[None]:
    """Rays that this process starts in the block take their workers from a process that has imported what they need."""
    from ray._private import services

    address, shim = folder / "socket", folder / "python"
    ask = ASK.format(python=sys.executable)
    places = {"address": address, "others": folder / OTHERS}
    write_script(shim, SHIM.format(python=sys.executable, ask=ask, job=FIRST_JOB, worker=WORKER, **places))
    start, real = services.start_raylet, sys.executable

    def start_raylet(*arguments, **settings):
        sys.executable = str(shim)
        try:
            raylet = start(*arguments, **settings)
        finally:
            sys.executable = real
        servers.enter_context(server(__name__, address, _environment(raylet.process.pid)))
        return raylet

    with contextlib.ExitStack() as servers:
        services.start_raylet = start_raylet
        try:
            yield
        finally:
            services.start_raylet = start


def _environment(raylet: int) -> dict[str, str]:
    """Ray's native code reads its environment once, as it is imported: it is that of the workers of the first job."""
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return os.environ | path | {"RAY_JOB_ID": FIRST_JOB, "RAY_RAYLET_PID": str(raylet)}


def _become_worker(caller: socket.socket, call: Call, files: list[int]) -> NoReturn:
    caller.close()
    become(call, files)
    sys.argv = call["arguments"][next(i for i, one in enumerate(call["arguments"]) if one.endswith(WORKER)) :]

    def work() -> None:
        runpy.run_path(sys.argv[0], run_name="__main__")

    run_and_exit(work)


if __name__ == "__main__":
    load(PRELOADED)
    sys.modules["fedsim.data.embedded"].Digits().load()  # kept: each worker would encode them anew
    serve(_become_worker)
