"""Where unfinished attacks keep their state: a folder of the run, watched while it runs, then gone."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path
from typing import Any

from attacks.session import PROGRESS
from experiments.progress import Bars
from fedsim.tracking import RunFolder

logger = getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LINES = 30.0
"""In the log, and where the output is no terminal."""

FORGOTTEN_AFTER = 600.0
"""Seconds without a word after which an attack is no longer shown as running."""

NAMED = 2
"""So many running attacks are named; the others are counted."""


@contextmanager
def scratch_folder(folder: RunFolder, bars: Bars, resumable: bool) -> Iterator[Path | None]:
    """A folder for the block, and its attacks' progress in the bars; None where it cannot be created.

    What was interrupted is left to another call on the same run folder.

    Args:
        resumable: so is what was stopped for its time or lost its workers: another call tries failed attacks again.
    """
    path = folder.root.resolve() / "scratch"
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        logger.warning("attacks cannot be resumed, %s cannot be created: %s", path, error)
        yield None
        return
    watch = ProgressWatch(path, bars)
    watch.start()
    interrupted = True
    try:
        yield path
        interrupted = False
    finally:
        watch.stop()
        if not interrupted and not (resumable and _anything_failed(folder)):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # it holds something for a later call
            path.rmdir()


def _anything_failed(folder: RunFolder) -> bool:
    latest = {(row["observation"], row["attack"]): row["status"] for row in folder.rows("attacks")}
    return "failed" in latest.values()


class ProgressWatch(threading.Thread):
    """Looks once a second how far the running attacks are: they run in other processes, or keep this one busy."""

    def __init__(self, scratch: Path, bars: Bars) -> None:
        super().__init__(name="progress of attacks", daemon=True)
        self._scratch = scratch
        self._bars = bars
        self._since = time.time()
        self._said = time.monotonic()
        self._shown = False
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            running = read_progress(self._scratch, max(self._since, time.time() - FORGOTTEN_AFTER))
            if running or self._shown:
                self._show(running)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _show(self, running: list[dict[str, Any]]) -> None:
        note = describe(running)
        done, total = sum(one["done"] for one in running), sum(one["total"] for one in running)
        self._shown = bool(running)
        self._bars.set("steps", done, max(total, 1), note)
        if running and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            logger.info("%s", note)
            self._bars.say(note)


def read_progress(scratch: Path, since: float = 0.0) -> list[dict[str, Any]]:
    """What the attacks have told after this time; a file that vanishes or holds something else is passed over."""
    running = []
    for path in sorted(scratch.glob(f"*/{PROGRESS}")):
        try:
            if path.stat().st_mtime < since:
                continue
            told = json.loads(path.read_text(encoding="utf-8"))
            running.append(
                {
                    "title": str(told["title"]),
                    "done": int(told["done"]),
                    "total": int(told["total"]),
                    "values": {str(name): float(value) for name, value in told["values"].items()},
                }
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return running


def describe(running: list[dict[str, Any]]) -> str:
    """`gradvit on round-00000-client-00003: step 400/4800, objective 0.12; and 3 more`."""
    words = []
    for one in running[:NAMED]:
        values = "".join(f", {name} {value:.3g}" for name, value in one["values"].items())
        words.append(f"{one['title']}: step {one['done']}/{one['total']}{values}")
    if len(running) > NAMED:
        words.append(f"and {len(running) - NAMED} more")
    return "; ".join(words)
