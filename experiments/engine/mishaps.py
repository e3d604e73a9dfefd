"""Attacks that failed or refused while a run went on: each told once, all counted at the end."""

from collections import Counter
from collections.abc import Callable

from fedsim.observation import observation_name
from server.attacking import Outcome
from server.results import Job


class Mishaps:
    """What a reader of the console has to know before the report is open.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: dict[str, Counter[str]] = {"failed": Counter(), "refused": Counter()}

    def note(self, job: Job, outcome: Outcome) -> None:
        """Say why an attack failed, the first time it does; count it, and what it refuses."""
        counts = self._counts.get(outcome.status)
        if counts is None:
            return
        if outcome.status == "failed" and job.attack not in counts:
            where = observation_name(job.server_round, job.client)
            self._say(f"{job.attack} failed on {where}: {' '.join(outcome.reason.split())}")
        counts[job.attack] += 1

    def __str__(self) -> str:
        """` (4 failed: tag; 2 refused: april, rgap)`, or nothing."""
        parts = [
            f"{counts.total()} {status}: {', '.join(sorted(counts))}"
            for status, counts in self._counts.items()
            if counts
        ]
        return f" ({'; '.join(parts)})" if parts else ""
