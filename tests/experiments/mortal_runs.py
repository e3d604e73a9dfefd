"""Runs in processes of their own that end at a chosen call; `python -m` starts a server of such processes.

The server imports everything once and forks for each line that it reads: {"arguments": […], "end": null or {"at":
"module:name.of.function", "call": 3, "how": "before"}, "report": false, "command": "fedsim", "workers": null}. It
answers with a line {"code": exit code, negative for a signal, "out": …, "err": …}.
"""

import errno
import functools
import gc
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

COMMANDS = {
    "fedsim": "experiments.run.command",
    "fedsim-audit": "experiments.audit.command",
    "fedsim-matrix": "experiments.matrix.command",
    "fedsim-measure": "experiments.measure.command",
}
LIBRARIES = ["datasets", "flwr_datasets", "matplotlib.backends.backend_svg", "seaborn", "sklearn.datasets", "timm"]
"""What most runs import on their way: three seconds that a child need not take again."""


class MortalRuns:
    """The server from the outside.

    Args:
        python: that it is started with, see `warm_python`.
        path: a folder of further packages, in front of all others.
    """

    def __init__(self, python: Path, path: Path | None = None) -> None:
        self._python, self._path = python, path

    def __enter__(self) -> Self:
        command = [str(self._python), "-m", "tests.experiments.mortal_runs"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self._path is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._path), os.environ.get("PYTHONPATH"))))
        root = Path(__file__).parents[2]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(timeout=60)

    def run(
        self,
        *arguments: str,
        at: str | None = None,
        call: int = 1,
        how: str = "before",
        code: int | None = None,
        report: bool = False,
        command: str = "fedsim",
        workers: Path | None = None,
    ) -> dict[str, Any]:
        """The command with these arguments.

        Args:
            at: a function at whose nth call something happens.
            how: a key of `ENDS`.
            code: the exit code to expect; None: as `how` is.
            workers: a Python, see `warm_python`, that Ray starts its workers with; None: its own.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        end = None if at is None else {"at": at, "call": call, "how": how}
        python = workers and str(workers)
        asked = {"arguments": arguments, "end": end, "report": report, "command": command, "workers": python}
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        expected = code if code is not None else 0 if at is None else -signal.SIGKILL
        assert answer["code"] == expected, answer["out"] + answer["err"]
        return answer


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_mid_write(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content[: len(content) // 2])
    kill()


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def fill_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


ENDS = {"before": kill, "after": kill, "half": kill_in_mid_write, "interrupt": interrupt, "full": fill_disk}


def end_at(at: str, call: int, how: str) -> None:
    """Replace a function by one at whose nth call `ENDS[how]` happens."""
    module, _, path = at.partition(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
    original, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        chosen = next(calls) == call
        if chosen and how != "after":
            ENDS[how](*args)
        result = original(*args, **kwargs)
        if chosen:
            ENDS[how](*args)
        return result

    setattr(owner, name, replaced)


def _call(asked: dict[str, Any]) -> int:
    from experiments.cli.call import run_command
    from experiments.commands.stage import CommandStage
    from fedsim.report import render
    from tests.experiments.three_nodes import start_workers_with

    try:
        if not asked["report"]:
            render._page = lambda run, judged: ""
        if asked["end"] is not None:
            end_at(**asked["end"])
        if asked["workers"] is not None:
            start_workers_with(asked["workers"])
        sys.argv = [asked["command"], *asked["arguments"]]
        run_command(CommandStage(asked["command"]))
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception:  # noqa: BLE001 - whatever it is, the caller shows it
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def warm() -> None:
    """What each child would otherwise compute anew for more than half of its time: settings read, digits decoded."""
    from hydra import compose, initialize_config_module
    from hydra._internal.hydra import Hydra

    from fedsim.data import FederatedData
    from fedsim.data.embedded import Digits
    from tests.support import remembered_pictures, remembered_settings

    for module in [*COMMANDS.values(), *LIBRARIES]:
        importlib.import_module(module)
    remembered_settings.remember()
    remembered_pictures.remember()
    with initialize_config_module("conf", version_base=None):
        compose("config", ["run_dir=unused", "simulation=inline", "tracker=[]"], return_hydra_config=True)
    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign,assignment] - composes all to see `hydra.mode`
    pictures = FederatedData(Digits(), None, 8).train
    pictures.images(range(len(pictures)))


def serve() -> None:
    warm()
    gc.collect()
    gc.freeze()  # a child searches, and copies, none of it
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os._exit(_call(asked))
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            print(json.dumps({"code": code, "out": out.read(), "err": err.read()}), flush=True)


if __name__ == "__main__":
    serve()
