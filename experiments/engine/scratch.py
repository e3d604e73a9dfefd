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
from experiments.cli.progress import Bars
from fedsim.report.wording import duration
from fedsim.storage.run_folder import RunFolder

logger = getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_FIRST_LINE = 5.0
SECONDS_BETWEEN_LINES = 30.0
"""In the log, and where the output is no terminal."""

FORGOTTEN_AFTER = 600.0
"""Seconds without a word after which a search is no longer shown as running."""
FORGOTTEN_WITHOUT_STEPS = 3600.0
"""The same for an attack that says one word, when it begins."""

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
        self._due = time.monotonic() + SECONDS_TO_FIRST_LINE
        self._shown = False
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            running = read_progress(self._scratch, self._since)
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
        long = any(time.time() - one["since"] >= SECONDS_TO_FIRST_LINE for one in running)
        if long and time.monotonic() >= self._due:
            self._due = time.monotonic() + SECONDS_BETWEEN_LINES
            logger.info("%s", note)
            self._bars.say(note)


def read_progress(scratch: Path, since: float = 0.0) -> list[dict[str, Any]]:
    """What the attacks have told after this time; a file that vanishes or holds something else is passed over."""
    running = []
    for path in sorted(scratch.glob(f"*/{PROGRESS}")):
        try:
            written = path.stat().st_mtime
            record = json.loads(path.read_text(encoding="utf-8"))
            one = {
                "title": str(record["title"]),
                "done": int(record["done"]),
                "total": int(record["total"]),
                "values": {str(name): float(value) for name, value in record["values"].items()},
                "since": float(record["since"]),
                "first": int(record["first"]),
            }
            if written >= max(since, time.time() - (FORGOTTEN_AFTER if one["total"] else FORGOTTEN_WITHOUT_STEPS)):
                running.append(one)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return running


def describe(running: list[dict[str, Any]]) -> str:
    """`gradvit on round-00000-client-00003: step 400/4800, objective 0.12, about 4 min left; and 3 more`."""
    words = [f"{one['title']}: {_how_far(one)}" for one in running[:NAMED]]
    if len(running) > NAMED:
        words.append(f"and {len(running) - NAMED} more")
    return "; ".join(words)


def _how_far(one: dict[str, Any]) -> str:
    """Of an attack without steps how long it has been at work."""
    seconds = max(0.0, time.time() - one["since"])
    if not one["total"]:
        return f"at work for {duration(seconds)}"
    values = "".join(f", {name} {value:.3g}" for name, value in one["values"].items())
    steps = one["done"] - one["first"]
    left = seconds * (one["total"] - one["done"]) / steps if steps > 0 else 0.0
    return f"step {one['done']}/{one['total']}{values}" + (f", about {duration(left)} left" if left >= 1.0 else "")
