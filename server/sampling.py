"""Which clients take part, and in which order they are summed: functions of the seed alone."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.determinism import seeded_globals
from server.wrapping import StrategyWrapper


class SeededSampling(StrategyWrapper):
    """Seeds Flower's node sampling for each round, and sorts replies before anybody sums them.

    Flower samples with Python's global generator and sums in the order of arrival, so that equal seeds
    give different bits.
    """

    def __init__(self, inner: Strategy, seed: int) -> None:
        super().__init__(inner)
        self._seed = seed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with seeded_globals(self._seed, "sample-train", server_round):
            return _in_order(self.inner.configure_train(server_round, arrays, config, grid))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with seeded_globals(self._seed, "sample-evaluate", server_round):
            return _in_order(self.inner.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.inner.aggregate_train(server_round, _by_sender(replies))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, _by_sender(replies))


def _in_order(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message.metadata.dst_node_id)


def _by_sender(replies: Iterable[Message]) -> list[Message]:
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)
