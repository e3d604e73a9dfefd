"""`fedsim resume=RUN`: settings from the run's own folder, and everything else as it was after a round."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from experiments.cli.call import console
from experiments.engine.reporting import tell_end
from fedsim.errors import ConfigError
from fedsim.report.render import report_run
from fedsim.storage.durable import write_whole
from fedsim.storage.json_objects import DamagedFileError, read_object
from fedsim.storage.run_folder import RunFolder
from fedsim.storage.sealed import SealedStates
from server.attack_queue.pending import PendingObservations
from server.attack_queue.results import has_images
from server.resume.points import ResumePoint, newest_point

LEFT = "tracked.json"
"""Beside the resume points: how many of a point's results of attacks a resumption left."""

STATES_IN_A_POINT = 4
"""The global state, and what a strategy may keep of its size: the weights before, momentum and variance."""


def finished(root: Path) -> bool:
    """Whether the run in this folder came to its end; then its report is built anew and printed.

    Raises:
        DamagedFileError: that cannot be told; nothing is removed then.
    """
    summary = root / "summary.json"
    if not summary.is_file() or read_object(summary).get("finished") is not True:
        return False
    console.print("this run is finished", markup=False)
    folder = RunFolder(root)
    shutil.rmtree(folder.resume_points, ignore_errors=True)
    tell_end(folder, *report_run(root))
    return True


def go_back(folder: RunFolder, pending: PendingObservations, every: float | None) -> ResumePoint | None:
    """The newest whole resume point, with the folder's files as they were then, results of attacks aside.

    Those are kept: attacks that are made again would give the same. None where the run had not come so far: it begins
    anew. What a point counts as tracked is counted among those that are kept.

    Raises:
        ConfigError: the folder has no point that could be used.
    """

    def say(text: str) -> None:
        console.print(text, markup=False)

    point = newest_point(SealedStates(folder.resume_points), say)
    if point is None and every is None:
        raise ConfigError("resume", folder.root, "a run with resume points; resume_every_seconds=null left none there")
    left = folder.resume_points / LEFT
    server_round, results = (-1, 0) if point is None else (point.server_round, _tracked(left, point, say))
    for name, lines in (("metrics", server_round + 1), ("attacks", results)):
        if (found := sum(1 for _ in folder.rows(name))) < lines:
            say(f"{folder.root / name}.jsonl has {found} of {lines} lines that it had after round {server_round}")
    folder.drop_checkpoints(after=server_round)
    for name in ("metrics", "timings"):
        folder.keep_rows(name, lambda row: row["round"] <= server_round)
    waiting = pending.names()

    def stays(row: dict[str, Any]) -> bool:
        return (row["round"] <= server_round and row["observation"] not in waiting) or has_images(folder, row)

    if point is not None:
        point = replace(point, tracked=sum(map(stays, islice(folder.rows("attacks"), results))))
        if point.tracked != results:
            _keep_tracked(left, point, say)
    folder.keep_rows("attacks", stays)
    say(
        "no resume point yet: the run begins anew"
        if point is None
        else f"goes on after round {server_round}; {sum(1 for _ in folder.rows('attacks'))} results of attacks are kept"
    )
    return point


def _tracked(left: Path, point: ResumePoint, say: Callable[[str], None]) -> int:
    """How many results trackers had for good at this point, of those that an earlier resumption from it left."""
    try:
        found = read_object(left) if left.exists() else {}
    except DamagedFileError as error:
        say(str(error))
        found = {}
    tracked = found.get("tracked")
    return tracked if found.get("point") == _name(point) and isinstance(tracked, int) else point.tracked


def _keep_tracked(left: Path, point: ResumePoint, say: Callable[[str], None]) -> None:
    """Before the others go: killed in between, trackers get some results a second time, and miss none."""
    try:
        write_whole(left, json.dumps({"point": _name(point), "tracked": point.tracked}).encode())
    except OSError as error:
        say(f"interrupted again before the next resume point, trackers may miss results: {error}")


def _name(point: ResumePoint) -> list[float]:
    """Of one point: a run that went back further may write another of the same round."""
    return [point.server_round, point.seconds]


def check_room(folder: RunFolder, model: nn.Module, every: float | None, kept: int = 0) -> None:
    """Raises ConfigError where the disk has less room than one resume point, or one checkpoint, takes.

    Args:
        kept: bytes that clients keep from round to round, which are in a resume point too.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if every is None:
        folder.check_room(size, "a checkpoint")
    else:
        folder.check_room(STATES_IN_A_POINT * size + kept, "a resume point")
