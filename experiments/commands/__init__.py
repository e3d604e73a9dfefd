"""The commands as the console starts them; each module here is imported before any library is."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from experiments.commands.stage import CommandStage


def fedsim() -> NoReturn:
    """A federated run under the eyes of a curious server."""
    start("fedsim")


def fedsim_audit() -> NoReturn:
    """What shared updates give away, without a federation."""
    start("fedsim-audit")


def fedsim_measure() -> NoReturn:
    """Trained models compared."""
    start("fedsim-measure")


def fedsim_matrix() -> NoReturn:
    """Attacks against defenses."""
    start("fedsim-matrix")


def fedsim_prior() -> NoReturn:
    """What attacks bring along."""
    start("fedsim-prior")


def fedsim_report() -> NoReturn:
    """Pages of runs, anew or side by side."""
    start("fedsim-report")


def start(name: str, work: Callable[["CommandStage"], None] | None = None) -> NoReturn:
    """Run the command, and end this process with its exit code.

    It ends at once: everything of a run is closed by then, and what libraries do at their exit takes seconds.

    Args:
        work: of a command that Hydra does not compose. It imports what takes seconds, which is said before.
    """
    code = 1
    try:
        from experiments.commands.interrupt import CtrlC
        from experiments.commands.stage import CommandStage

        stage = CommandStage(name)
        CtrlC(stage)
        if work is not None:
            print("loading PyTorch, timm and Flower …", file=sys.stderr, flush=True)
            work(stage)
        elif name == "fedsim-report":
            from experiments.commands.report import run_report

            run_report()
        else:
            from experiments.cli.call import run_command

            run_command(stage)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except KeyboardInterrupt:  # before it was watched for
        code = 130
    except BaseException:  # noqa: BLE001 - shown as Python would show it
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a reader that has gone, as `head` does
            stream.flush()
    os._exit(code)
