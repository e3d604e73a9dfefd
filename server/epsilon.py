"""The privacy budget of a federation: that of the client who has spent most."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedsim.contents import metric_records
from fedsim.privacy import largest_epsilons
from fedsim.records import METRICS
from server.wrapping import StrategyWrapper


class LargestEpsilon(StrategyWrapper):
    """Reports of every ε the largest of any client in any round so far; `inner` reports a mean weighted by examples.

    A client's ε is of all its rounds and never falls: clients that this round left out have spent theirs too. It must
    see a reply of each client, with its metrics; where updates are summed on workers that is outside `WorkerSums`.
    """

    def __init__(self, inner: Strategy) -> None:
        super().__init__(inner)
        self._largest: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"largest": dict(self._largest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._largest = dict(state["largest"])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        contents = [reply.content for reply in replies if not reply.has_error()]
        reports = [metric_records(content)[METRICS] for content in contents if METRICS in metric_records(content)]
        self._largest = largest_epsilons([self._largest, *reports])
        arrays, metrics = self.inner.aggregate_train(server_round, replies)
        return arrays, metrics if not self._largest else MetricRecord({**(metrics or {}), **self._largest})
