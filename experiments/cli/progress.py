"""Progress bars on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedsim.report.wording import duration

SECONDS_BETWEEN_LINES = 30.0


class Bars:
    """Named bars; where the output is no terminal, `say` prints plain lines instead."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<10}", table_column=Column(no_wrap=True)),
            BarColumn(12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            # What is left of the line, cut at its end: else a long note leaves the others no room.
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            expand=True,
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._due = 0.0

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def set(self, name: str, completed: int, total: int, note: str | None = None) -> None:
        """Create or move a bar; a note stays until another replaces it."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, note="")
        self._progress.update(self._tasks[name], completed=completed, total=total)
        if note is not None:
            self._progress.update(self._tasks[name], note=note)

    def say_now_and_then(self, text: str, name: str | None = None) -> None:
        """A line at first and then every so often, with the time that the bar of this name has left."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + SECONDS_BETWEEN_LINES
        left = next((t.time_remaining for t in self._progress.tasks if name and t.id == self._tasks[name]), None)
        self.say(f"{text}, about {duration(left)} left" if left else text)

    def say(self, text: str) -> None:
        """A line for people who watch a log, not a terminal."""
        if not self._console.is_terminal:
            self._console.print(text, markup=False)
