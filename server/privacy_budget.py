"""The privacy budget of a federation: that of the client who has spent most."""

import math
from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord

from fedsim.bounds.privacy import (
    COPIES,
    MU,
    began_anew,
    held_by_several,
    is_budget,
    is_first_round,
    largest_budgets,
    spent_at_most,
)
from fedsim.wire.contents import config_records, metric_records
from fedsim.wire.records import METRICS, UPDATE
from fedsim.wire.reply.values import LATE, MALFORMED

logger = getLogger(__name__)


class PrivacyBudget:
    """Of every ε and μ the largest of any client in any round so far; a strategy reports a mean weighted by examples.

    A client's ε is of all its rounds and never falls: clients that this round left out have spent theirs too. One that
    began to count anew (a SuperNode keeps its count in memory and was started again) has spent more than it says, and
    how much more its new count cannot tell: from then on that ε is ∞.

    A reply that the server refuses has reached it: what it says that its client has spent counts, under names that
    other clients report, if any does. One that says nothing of them may have spent anything: they are ∞ from then on.
    So they are where replies were taken that leave one out.

    The reply of a client that misses its round's time, or whose node goes before it is fetched, may be at the SuperLink
    all the same: every ε is ∞ until that client reports again what it has spent, if it ever does.

    Args:
        holders: clients that hold one image, at most, each of which releases it; None: that is not known, and no μ is
            reported.
    """

    def __init__(self, holders: int | None = None) -> None:
        self._holders = holders
        self._largest: dict[str, float] = {}
        self._reported: dict[str, dict[str, float]] = {}
        self._refused: dict[str, float] = {}
        self._unknown = False
        self._late: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        return {
            "largest": dict(self._largest),
            "reported": {who: dict(values) for who, values in self._reported.items()},
            "refused": dict(self._refused),
            "unknown": self._unknown,
            "late": sorted(self._late),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._largest = _without_uncounted(state["largest"])
        self._reported = {who: dict(values) for who, values in state.get("reported", {}).items()}
        self._refused = dict(state.get("refused", {}))
        self._unknown = bool(state.get("unknown", False))
        self._late = {int(node) for node in state.get("late", ())}

    def hear(self, server_round: int, replies: Iterable[Message], refused: Iterable[Message] = ()) -> None:
        """A round's replies, one of each client with its metrics: before updates are taken out of any.

        Args:
            refused: replies that stand among the others as errors, as they came.
        """
        replies, refused = list(replies), list(refused)
        heard = [reply for reply in replies if not reply.has_error() and METRICS in metric_records(reply.content)]
        reports = [self._believed(server_round, reply) for reply in heard]
        self._largest = largest_budgets([self._largest, *reports])
        self._late -= {reply.metadata.src_node_id for reply in [*heard, *refused]}
        self._late |= {reply.metadata.src_node_id for reply in replies if _failed(reply, LATE)}
        silent = sum(_failed(reply, MALFORMED) for reply in replies)
        for reply in refused:
            told = self._believed(server_round, reply) if METRICS in metric_records(reply.content) else {}
            if any(map(is_budget, told)) and self._largest.keys() <= told.keys():
                silent -= 1
                self._refused = largest_budgets([self._refused, told])
        named = self._largest.keys() or self._refused.keys()
        uncounted = any(not named <= report.keys() for report in reports)
        self._unknown = self._unknown or uncounted or silent > 0

    def put_into(self, metrics: MetricRecord | None) -> MetricRecord | None:
        """The strategy's metrics with the budget in place of its means."""
        names = self._largest or self._refused
        spent = largest_budgets([self._largest, {n: value for n, value in self._refused.items() if n in names}])
        if not spent:
            return metrics
        untold = [name for name in spent if self._refused and name not in self._refused]
        spent |= dict.fromkeys(spent if self._unknown or self._late else untold, math.inf)
        reported = {name: value for name, value in (metrics or {}).items() if not is_first_round(name)}
        reported = {name: value for name, value in reported.items() if not is_budget(name)}
        return MetricRecord({**reported, **held_by_several(spent, self._holders)})

    def _believed(self, server_round: int, reply: Message) -> Mapping[str, object]:
        """The client's metrics, with ∞ for each ε that it began anew."""
        metrics = metric_records(reply.content)[METRICS]
        counted = {name: value for name, value in metrics.items() if is_budget(name) or is_first_round(name)}
        now = {name: spent_at_most(value) for name, value in counted.items()}
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


def _without_uncounted(largest: Mapping[str, float]) -> dict[str, float]:
    """With ∞ for each μ of an earlier version, which counted no copies of an image: what was spent is not known."""
    uncounted = [name for name in largest if name.endswith(MU) and f"{name.removesuffix(MU)}{COPIES}" not in largest]
    return {**largest, **dict.fromkeys(uncounted, math.inf)}


def _failed(reply: Message, prefix: str) -> bool:
    return reply.has_error() and (reply.error.reason or "").startswith(prefix)


def _client(reply: Message) -> str:
    """By its pictures, which outlive a node's number; a refused reply may say any value at all of them."""
    partition = config_records(reply.content).get(UPDATE, ConfigRecord()).get("partition-id")
    if isinstance(partition, int) and 0 <= partition < 2**63:
        return f"client {partition}"
    return f"node {reply.metadata.src_node_id}"
