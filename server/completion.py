"""From what clients share to the whole weights that Flower's strategies average."""

import copy
from collections.abc import Iterable

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.wire.contents import array_records, config_records
from fedsim.wire.records import ARRAYS, UPDATE, from_array, to_array
from server.wrapping import StrategyWrapper


class CompleteUpdates(StrategyWrapper):
    """Gives `inner` whole weights where clients share deltas or withhold tensors, in the order of the global model.

    A tensor that nobody shared keeps the bits that it had. Messages are replaced, never written into. Some of Flower's
    strategies go by the place of a tensor, not by its name: the order is no client's to choose.
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
        shared: set[str] = set()
        whole = []
        for reply in replies:
            if reply.has_error():
                whole.append(reply)
                continue
            shared |= set(array_records(reply.content)[ARRAYS])
            whole.append(self._complete(reply))
        arrays, metrics = self.inner.aggregate_train(server_round, whole)
        return (None if arrays is None else self._restore(arrays, shared)), metrics

    def _complete(self, reply: Message) -> Message:
        content = reply.content
        kind = config_records(content)[UPDATE]["kind"]
        sent = array_records(content)[ARRAYS]
        if kind == "weights" and list(sent) == list(self._arrays):
            return reply
        weights: dict[str, Array] = {}
        for name, start in self._arrays.items():
            if name not in sent:
                weights[name] = start
            elif kind == "weights":
                weights[name] = sent[name]
            else:
                weights[name] = to_array(from_array(start) + from_array(sent[name]))
        records = {key: record for key, record in content.items() if key != ARRAYS}
        completed = copy.copy(reply)
        completed.content = RecordDict({ARRAYS: ArrayRecord(weights), **records})
        return completed

    def _restore(self, arrays: ArrayRecord, shared: set[str]) -> ArrayRecord:
        """Averaging n equal tensors rounds, and averaging integers makes floats: undo both."""
        restored: dict[str, Array] = {}
        for name, start in self._arrays.items():
            if name not in shared:
                restored[name] = start
            elif arrays[name].dtype != start.dtype:
                restored[name] = to_array(from_array(arrays[name]).to(from_array(start).dtype))
            else:
                restored[name] = arrays[name]
        return ArrayRecord(restored)
