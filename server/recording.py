"""What happened in a round: counts, losses, failures, seconds."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.simulation.traffic import Traffic
from server.timing import Stopwatch
from server.wrapping import StrategyWrapper


@dataclass
class RoundRecord:
    """One round as the server saw it; `seconds` and `traffic` are kept apart from what a seed reproduces."""

    metrics: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    traffic: Traffic | None = None


class RoundRecorder(StrategyWrapper):
    """Keeps the record of the current round for whoever logs it.

    Args:
        client_of: a client's number from its node id, where the Grid numbers its nodes.
        attacks: runs while updates are handed to attacks, which is no part of aggregation.
    """

    def __init__(
        self, inner: Strategy, client_of: Callable[[int], int] = int, attacks: Stopwatch | None = None
    ) -> None:
        super().__init__(inner)
        self._client_of = client_of
        self.attacks = attacks or Stopwatch()
        self.aggregated = 0
        self.record = RoundRecord()
        self._mark = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        return {"aggregated": self.aggregated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.aggregated = state["aggregated"]

    def take(self) -> RoundRecord:
        """The record since the last call."""
        record, self.record = self.record, RoundRecord()
        return record

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._mark = time.perf_counter()
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._lap("configure")
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = self._told_apart(replies)
        self.record.metrics["clients"] = sum(not reply.has_error() for reply in replies)
        arrays, metrics = self.inner.aggregate_train(server_round, replies)
        self.record.metrics |= dict(metrics or {})
        if arrays is None:
            self.record.failures.append({"client": None, "error": "nothing was aggregated: the model is unchanged"})
        else:
            self.aggregated += 1
        self._lap("aggregate")
        self.record.seconds["attacks"] = self.attacks.take()
        self.record.seconds["aggregate"] -= self.record.seconds["attacks"]
        return arrays, metrics

    def exchanged(self, traffic: Traffic | None) -> None:
        """The replies are there: keep what the exchange cost, where the Grid measures it."""
        self._lap("train")
        self.record.traffic = traffic

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._mark = time.perf_counter()
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = self._told_apart(replies)
        metrics = self.inner.aggregate_evaluate(server_round, replies)
        self.record.metrics |= {f"client_{name}": value for name, value in (metrics or {}).items()}
        if replies:
            self._lap("client_evaluate")
        return metrics

    def _told_apart(self, replies: Iterable[Message]) -> list[Message]:
        """All replies, once those that are errors are in the record."""
        replies = list(replies)
        self.record.failures += [
            {"client": self._client_of(reply.metadata.src_node_id), "error": reply.error.reason}
            for reply in replies
            if reply.has_error()
        ]
        return replies

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.record.seconds[name] = now - self._mark
        self._mark = now
