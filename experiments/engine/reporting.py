"""How a run ends: with its report, whatever became of it. Workers never import what draws it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.cli.call import console, errors
from experiments.commands.stage import can_begin_anew
from fedsim.errors import RunError
from fedsim.metrics.perceptual import lpips_hint
from fedsim.report.render import build_report, report_run
from fedsim.report.run.attack_lines import attack_lines
from fedsim.report.run.read import read_run
from fedsim.report.run.verdict import Verdict
from fedsim.settings.places import once_mended, write_refused
from fedsim.storage.json_objects import DamagedFileError, read_object
from fedsim.storage.run_folder import RunFolder
from fedsim.storage.sealed import SealedStates
from fedsim.storage.values import number


@contextmanager
def reported(
    folder: RunFolder,
    kind: str,
    start: float,
    test_pictures: int | None = None,
    commonest_class: float | None = None,
    goes_on: bool = False,
) -> Iterator[None]:
    """Whatever becomes of the run in the block, its folder gets a report; it is printed with the folder last.

    Args:
        test_pictures: how many the accuracy is a share of; None where none is measured.
        commonest_class: the share of them that is of one class, at most.
        goes_on: an earlier call left results here, whose time counts too; where that one was cut off it is unknown.

    Raises:
        RunError: the disk is full, or a file in the folder is another user's.
    """
    before = _seconds_before(folder.root / "summary.json") if goes_on else 0.0
    if goes_on:
        (folder.root / "summary.json").unlink(missing_ok=True)  # it is of a call that had ended
    try:
        yield
        seconds = None if before is None else before + time.perf_counter() - start
        facts: dict[str, Any] = {"kind": kind, "finished": True, "seconds": seconds, "lpips": lpips_hint()}
        if test_pictures is not None:
            facts |= {"test_pictures": test_pictures, "commonest_class": commonest_class}
        page, judged = report_run(folder.root, facts)
    except BaseException as error:
        if not folder.root.exists():  # whoever holds its lock says so
            raise
        again = _how_to_go_on(folder, kind)
        refused = write_refused(error, folder.root)
        unfinished = _unfinished_page(folder)
        if not isinstance(error, KeyboardInterrupt):  # then the command itself says how to go on
            advice = "" if refused or isinstance(error, RunError) else again
            errors.print(f"unfinished; what there is: {unfinished}{advice and f'; {advice}'}", markup=False)
        if refused:
            reason = f"{refused}; what had finished is kept"
            raise RunError(f"{reason}. {once_mended(error)}, {again}" if again else reason) from error
        raise
    tell_end(folder, page, judged)


def _seconds_before(summary: Path) -> float | None:
    """Of an earlier call that came to its end; None where it did not."""
    try:
        return number(read_object(summary).get("seconds")) if summary.is_file() else None
    except DamagedFileError:
        return None


def _how_to_go_on(folder: RunFolder, kind: str) -> str:
    if kind != "federated":
        return "the same command with this run_dir goes on"
    if SealedStates(folder.resume_points).numbers():
        return f"fedsim resume={folder.root} goes on"
    return f"fedsim resume={folder.root} begins anew there" if can_begin_anew(folder.root) else ""


def _unfinished_page(folder: RunFolder) -> str:
    try:
        return str(build_report(folder.root))
    except OSError as error:
        return f"{folder.root}, without a report ({error.strerror})"


def tell_end(folder: RunFolder, page: Path, judged: Verdict) -> None:
    """A line for each attack of a finished run, its level and its sentence, and last where to read on."""
    for line in (*attack_lines(read_run(folder.root)), judged.line):
        console.print(line, markup=False)
    console.print(f"report  {page}", markup=False)
    console.print(str(folder.root), markup=False)
