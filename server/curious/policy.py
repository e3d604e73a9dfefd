"""Whose updates the curious server keeps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ObservePolicy:
    """`cfg.observe`: whose updates are kept and attacked.

    Attributes:
        every: attack in round 1 and each multiple of this number; 0 observes nothing.
        clients: how many of a round's clients (those with the lowest partition ids), a list of
            partition ids, or `all`. Under secure aggregation: how many of the round's sums, or `all`.
        save: write observations to disk, so that they can be attacked again later.
    """

    every: int = 1
    clients: Any = "all"
    save: bool = True

    def wants_round(self, server_round: int) -> bool:
        return self.every > 0 and (server_round == 1 or server_round % self.every == 0)

    def choose(self, candidates: Iterable[int]) -> set[int]:
        """The ids to observe among those that there are."""
        ordered = sorted(candidates)
        if self.clients == "all":
            return set(ordered)
        if isinstance(self.clients, int):
            return set(ordered[: self.clients])
        return set(ordered) & {int(client) for client in self.clients}
