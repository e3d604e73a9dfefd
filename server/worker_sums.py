"""Updates that nobody looks at are added up where they are made."""

import copy
from collections.abc import Callable, Iterable, Iterator
from logging import getLogger

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from fedsim.wire.contents import array_records, config_records
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_UPDATE, SUM_WANTED, WHOLE, mean_replies
from fedsim.wire.records import ARRAYS, CONFIG, NUM_EXAMPLES
from server.wrapping import StrategyWrapper

logger = getLogger(__name__)

WEIGHTED_MEANS = (FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad, FedYogi)
GROUPS, LARGEST = 16, 16


def is_weighted_mean(strategy: Strategy) -> bool:
    """Whether the strategy needs no more than the mean of all updates, weighted by examples.

    A subclass may do anything with its replies; one that does not says so by `weighted_mean = True`.
    """
    if getattr(strategy, "weighted_by_key", NUM_EXAMPLES) != NUM_EXAMPLES:
        return False
    return type(strategy) in WEIGHTED_MEANS or getattr(strategy, "weighted_mean", False) is True


def group_size(clients: int) -> int:
    """Clients whose updates are added up by one worker: enough groups for many workers, few messages for many clients.

    A function of the number of clients alone: the order of additions must not depend on the machine.
    """
    return max(1, min(LARGEST, clients // GROUPS))


class WorkerSums(StrategyWrapper):
    """Asks the Grid for sums of updates in place of updates, and hands `inner` their weighted means.

    A round's memory then grows with the workers and the observed clients, not with the clients. A Grid that knows
    nothing of sums brings whole updates, which go to `inner` as they are.

    Args:
        inner: a strategy of which `is_weighted_mean` holds.
        chosen: which of a round's nodes are observed, so that their updates travel besides.
        size: clients in a group; None: `group_size`.
    """

    def __init__(
        self,
        inner: Strategy,
        chosen: Callable[[int, list[int]], Iterable[int]] = lambda server_round, nodes: (),
        size: int | None = None,
    ) -> None:
        super().__init__(inner)
        self._chosen = chosen
        self._size = size

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        nodes = sorted(message.metadata.dst_node_id for message in messages)
        wanted = self._size or group_size(len(nodes))
        whole = sorted(self._chosen(server_round, nodes))
        for content in {id(message.content): message.content for message in messages}.values():
            instructions = config_records(content).get(CONFIG)
            if instructions is not None:
                instructions[SUM_WANTED], instructions[WHOLE] = wanted, whole
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if not any(_carries_sum(reply) for reply in replies):
            return self.inner.aggregate_train(server_round, replies)
        return self.inner.aggregate_train(server_round, list(_means(replies)))


def _carries_sum(reply: Message) -> bool:
    return not reply.has_error() and SUM in array_records(reply.content)


def _means(replies: list[Message]) -> Iterator[Message]:
    """Errors and clients that share nothing as they are, and one reply for each sum."""
    for reply in replies:
        if reply.has_error() or _shares_nothing(reply):
            yield reply
    for reply in replies:
        if _carries_sum(reply):
            sums = {name: reply.content.pop(name) for name in (SUM, SUM_OF, SUM_UPDATE)}
            try:
                (content,) = mean_replies([type(reply.content)(sums)])
            except ValueError as error:
                logger.warning("a sum of updates is worth nothing: %s", error)
                continue
            mean = copy.copy(reply)
            mean.content = content
            yield mean


def _shares_nothing(reply: Message) -> bool:
    records = array_records(reply.content)
    return ARRAYS in records and len(records[ARRAYS]) == 0
