"""Resume points: what a run needs to go on after a round as if nothing had happened."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, RecordDict

from fedsim.storage.sealed import SealedStates

logger = getLogger(__name__)

LARGEST_SHARE = 0.05
"""Of a run's time that may go into its resume points, where they need not come after each round."""


@dataclass(frozen=True)
class ResumePoint:
    """A run after a round.

    Attributes:
        arrays: the global state.
        strategy: as `strategy_state` gives it.
        clients: what clients keep between rounds, by node id.
        seconds: since the run began, without the time between its parts.
        tracked: how many results of attacks trackers had been given for good.
    """

    server_round: int
    arrays: ArrayRecord
    strategy: dict[str, Any]
    clients: dict[int, RecordDict]
    seconds: float
    tracked: int = 0


class ResumePoints:
    """Writes a point after the first and the last round, and whenever one is due in between.

    A point that cannot be written is said and costs nothing else: the earlier ones stay.

    Args:
        every_seconds: at least so long between two points, and longer where writing one takes more than a twentieth of
            that; 0: one after each round.
        settle: puts on disk what must be there before a round counts as done, and says how many results of attacks
            trackers have.
        say: tells the user.
    """

    def __init__(
        self,
        states: SealedStates,
        every_seconds: float,
        settle: Callable[[], int] = lambda: 0,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self._states = states
        self._every = every_seconds
        self._settle = settle
        self._say = say
        self._said = ""
        self._due = time.monotonic()

    def after_round(self, last: bool, make: Callable[[], ResumePoint]) -> None:
        """Write what `make` gives if it is time for it."""
        start = time.monotonic()
        if not last and start < self._due:
            return
        try:
            tracked = self._settle()
            point = replace(make(), tracked=tracked)
            size = self._states.write(point.server_round, vars(point))
        except (OSError, TypeError, ValueError) as error:
            self._complain(str(error))
        else:
            seconds = time.monotonic() - start
            logger.info("resume point of round %d: %.1f MB in %.2f s", point.server_round, size / 1e6, seconds)
        end = time.monotonic()
        self._due = end + (max(self._every, (end - start) / LARGEST_SHARE) if self._every > 0 else 0.0)

    def _complain(self, reason: str) -> None:
        if reason != self._said:
            self._say(f"no resume point, the run itself goes on: {reason}")
            self._said = reason


def newest_point(states: SealedStates, say: Callable[[str], None]) -> ResumePoint | None:
    """The newest point that is whole; None where there is none at all.

    Raises:
        ConfigError: there are points, but no whole one, or of another format.
    """
    found = states.newest(say)
    return None if found is None else ResumePoint(**found[1])
