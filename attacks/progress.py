"""A bar for who waits for a search, on a terminal or in a notebook."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attacks.session import Session


class ShownSession(Session):
    """Keeps nothing; moves a bar, with what the search measures beside it."""

    def __init__(self, bar: Progress, name: str) -> None:
        self._bar = bar
        self._task = bar.add_task(name, total=None, note="")

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        note = " ".join(f"{name}={value:.3g}" for name, value in values.items())
        self._bar.update(self._task, completed=done, total=total, note=note)


@contextmanager
def shown_session(name: str, shown: bool | None) -> Iterator[Session]:
    """A session with a bar called `name`.

    Args:
        shown: None: where somebody looks, on a terminal or in a notebook.
    """
    console = Console(file=None if "ipykernel" in sys.modules else sys.stderr)
    if not (console.is_terminal or console.is_jupyter) if shown is None else not shown:
        yield Session()
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn(), TimeRemainingColumn()
    kept = not (console.is_terminal or console.is_jupyter)  # what was asked for in a file is its last line
    with Progress(*columns, *times, TextColumn("{task.fields[note]}"), console=console, transient=not kept) as bar:
        yield ShownSession(bar, name)
