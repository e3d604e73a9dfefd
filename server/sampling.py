"""What Flower's strategies sample nodes from."""

from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class SeededGrid(Grid):
    """A Grid after whose answers the global generators are seeded.

    Strategies sample with Python's, from which Flower's own threads draw while a Grid asks for nodes or waits for them.
    """

    def __init__(self, inner: Grid, seed: Callable[[], None]) -> None:
        self._inner, self._seed = inner, seed

    def set_run(self, run: Run) -> None:
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        return self._inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(self._inner.get_node_ids())
        self._seed()
        return nodes

    def get_nodes(self) -> Iterable[NodeInfo]:
        nodes = list(self._inner.get_nodes())
        self._seed()
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._inner.send_and_receive(messages, timeout=timeout)
