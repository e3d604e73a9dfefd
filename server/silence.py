"""Clients that answer and share nothing."""

import math
from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.wire.contents import array_records, metric_records
from fedsim.wire.records import ARRAYS, NUM_EXAMPLES
from server.wrapping import StrategyWrapper


class OmitSilent(StrategyWrapper):
    """Aggregates without the clients whose defenses withheld the whole update; their metrics still count.

    Where nobody shares anything the round leaves the model as it was.
    """

    def __init__(self, inner: Strategy) -> None:
        super().__init__(inner)
        self._arrays = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._arrays = arrays
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        speaking = [reply for reply in replies if not _shares_nothing(reply)]
        if len(speaking) == len(replies):
            return self.inner.aggregate_train(server_round, replies)
        arrays: ArrayRecord | None = self._arrays
        metrics: MetricRecord | None = None
        if any(not reply.has_error() for reply in speaking):
            arrays, metrics = self.inner.aggregate_train(server_round, speaking)
        answered = [reply for reply in replies if not reply.has_error()]
        return arrays, MetricRecord({**(metrics or {}), **_mean_metrics(answered)})


def _shares_nothing(reply: Message) -> bool:
    if reply.has_error():
        return False
    records = array_records(reply.content)
    return ARRAYS in records and len(records[ARRAYS]) == 0


def _mean_metrics(replies: Sequence[Message]) -> dict[str, float]:
    """The numbers that all clients report, weighted by examples as Flower's strategies do."""
    reported = [next(iter(metric_records(reply.content).values()), MetricRecord()) for reply in replies]
    weights = [_number(record, NUM_EXAMPLES) or 0.0 for record in reported]
    total = sum(weights) or 1.0
    means: dict[str, float] = {}
    for name in reported[0]:
        values = [value for record in reported if (value := _number(record, name)) is not None]
        if name != NUM_EXAMPLES and len(values) == len(reported):
            means[name] = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    return means


def _number(record: MetricRecord, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else None
