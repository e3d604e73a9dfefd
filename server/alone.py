"""What secure aggregation does with a client that has nobody to be summed with: it aborts."""

import copy
from collections.abc import Iterable, Sequence
from logging import getLogger

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedsim.wire.contents import array_records, config_records
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_UPDATE
from fedsim.wire.records import ARRAYS, UPDATE
from server.summing import FEWEST, Sums, in_groups
from server.wrapping import StrategyWrapper

logger = getLogger(__name__)


class AbortAlone(StrategyWrapper):
    """Leaves a group out of the round in which fewer than two clients share anything; their metrics still count.

    The server sees the sums of the other groups, and the model before and after: a step that held one more client's
    update would show it. Where no group is left, or the updates are in one sum already, nothing is aggregated.

    Args:
        inner: omits clients that share nothing (`server.silence`).
        sums: its groups are those of all clients that answered, as the server observes them.
    """

    def __init__(self, inner: Strategy, sums: Sums) -> None:
        super().__init__(inner)
        self._sums = sums

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        answered = [reply for reply in replies if not reply.has_error()]
        speaking = {_client(reply) for reply in answered if _speaks(reply)}
        alone = alone_in_group(map(_client, answered), speaking, self._sums.clients)
        if not alone:
            return self.inner.aggregate_train(server_round, replies)
        names = ", ".join(map(str, sorted(alone)))
        logger.warning("round %d: %s aborts, no other shares with client %s", server_round, self._sums.by, names)
        if any(SUM in array_records(reply.content) for reply in answered):
            alone = speaking
        arrays, metrics = self.inner.aggregate_train(server_round, _without(replies, alone))
        return None if alone == speaking else arrays, metrics


def alone_in_group(clients: Iterable[int], speaking: set[int], size: int | None) -> set[int]:
    """Of the clients that share something those in whose group fewer than `FEWEST` do; groups as in `in_groups`."""
    groups = [speaking.intersection(group) for group in in_groups(clients, size)]
    return {client for group in groups if len(group) < FEWEST for client in group}


def _without(replies: Sequence[Message], alone: set[int]) -> list[Message]:
    """The replies with nothing shared by these clients, and without any sum. None is written into."""
    kept = []
    for reply in replies:
        if not reply.has_error():
            records = {k: record for k, record in reply.content.items() if k not in (SUM, SUM_OF, SUM_UPDATE)}
            nothing = {ARRAYS: ArrayRecord()} if _client(reply) in alone else {}
            reply = copy.copy(reply)
            reply.content = RecordDict({**records, **nothing})
        kept.append(reply)
    return kept


def _speaks(reply: Message) -> bool:
    """A reply without arrays was summed: its client shared something."""
    records = array_records(reply.content)
    return ARRAYS not in records or len(records[ARRAYS]) > 0


def _client(reply: Message) -> int:
    return int(config_records(reply.content)[UPDATE]["partition-id"])  # type: ignore[arg-type]
