"""The privacy budget of a federation: that of the client who has spent most."""

import math
from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import Any

from flwr.app import Message, MetricRecord

from fedsim.bounds.privacy import began_anew, is_budget, is_first_round, largest_budgets
from fedsim.wire.contents import config_records, metric_records
from fedsim.wire.records import METRICS, UPDATE

logger = getLogger(__name__)


class PrivacyBudget:
    """Of every ε and μ the largest of any client in any round so far; a strategy reports a mean weighted by examples.

    A client's ε is of all its rounds and never falls: clients that this round left out have spent theirs too. One that
    began to count anew (a SuperNode keeps its count in memory and was started again) has spent more than it says, and
    how much more its new count cannot tell: from then on that ε is ∞.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._reported: dict[str, dict[str, float]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "largest": dict(self._largest),
            "reported": {who: dict(values) for who, values in self._reported.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._largest = dict(state["largest"])
        self._reported = {who: dict(values) for who, values in state.get("reported", {}).items()}

    def hear(self, server_round: int, replies: Iterable[Message]) -> None:
        """A round's replies, one of each client with its metrics: before updates are taken out of any."""
        heard = [reply for reply in replies if not reply.has_error() and METRICS in metric_records(reply.content)]
        reports = [self._believed(server_round, reply) for reply in heard]
        self._largest = largest_budgets([self._largest, *reports])

    def put_into(self, metrics: MetricRecord | None) -> MetricRecord | None:
        """The strategy's metrics with the budget in place of its means."""
        if not self._largest:
            return metrics
        reported = {name: value for name, value in (metrics or {}).items() if not is_first_round(name)}
        return MetricRecord({**reported, **self._largest})

    def _believed(self, server_round: int, reply: Message) -> Mapping[str, object]:
        """The client's metrics, with ∞ for each ε that it began anew."""
        metrics = metric_records(reply.content)[METRICS]
        counted = {name: value for name, value in metrics.items() if is_budget(name) or is_first_round(name)}
        now = {name: float(value) for name, value in counted.items() if isinstance(value, int | float)}
        who = _client(reply)
        anew = began_anew(self._reported.get(who, {}), now)
        self._reported[who] = now
        for name in anew:
            logger.warning(
                "round %d: %s has forgotten what it had spent of %s (was its node started anew?): it is reported as ∞",
                server_round,
                who,
                name,
            )
        return {**metrics, **dict.fromkeys(anew, math.inf)}


def _client(reply: Message) -> str:
    """By its pictures, which outlive a node's number."""
    records = config_records(reply.content)
    if UPDATE in records and "partition-id" in records[UPDATE]:
        return f"client {records[UPDATE]['partition-id']!r}"
    return f"node {reply.metadata.src_node_id}"
