"""Attacks that failed or refused while a run went on: each told once, all counted at the end."""

from collections import Counter
from collections.abc import Callable

from fedsim.result import AttackResult


class AttackFailures:
    """What a reader of the console has to know before the report is open.

    Args:
        say: prints a line.

    Attributes:
        last: the last that failed.
        ended: whether any attack came to an end.
    """

    def __init__(self, say: Callable[[str], object] = lambda line: None) -> None:
        self._say = say
        self.last: AttackResult | None = None
        self.ended = False
        self._counts: dict[str, Counter[str]] = {"failed": Counter(), "refused": Counter()}

    def note(self, result: AttackResult) -> None:
        """Say why an attack failed, the first time it does; count it, and what it refuses."""
        if result.status == "failed":
            self.last = result
        else:
            self.ended = True
        counts = self._counts.get(result.status)
        if counts is None:
            return
        if result.status == "failed" and result.attack not in counts:
            self._say(f"{result.attack} failed on {result.observation}: {' '.join(result.reason.split())}")
        counts[result.attack] += 1

    def __str__(self) -> str:
        """` (4 failed: tag; 2 refused: april, rgap)`, or nothing."""
        parts = [
            f"{counts.total()} {status}: {', '.join(sorted(counts))}"
            for status, counts in self._counts.items()
            if counts
        ]
        return f" ({'; '.join(parts)})" if parts else ""
