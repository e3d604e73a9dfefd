"""A Grid as a SuperLink has it: random node ids, replies in another order than the messages."""

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class ScrambledGrid(Grid):
    """Nodes run `app` in this process, each with the node-config that it has there.

    Attributes:
        present: ids of the nodes that are there; tests take some away and add others.
        silent: ids of the nodes that never answer.
    """

    def __init__(
        self, app: ClientApp, run_config: Mapping[str, Any], node_configs: Iterable[Mapping[str, Any]]
    ) -> None:
        self.present: dict[int, Mapping[str, Any]] = {}
        self.silent: set[int] = set()
        self._app = app
        self._run_config = dict(run_config)
        self._random = random.Random(7)
        self._ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self._states: dict[int, RecordDict] = {}
        self._run = Run.create_empty(run_id=1)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        for node_config in node_configs:
            self.add(node_config)

    def add(self, node_config: Mapping[str, Any]) -> int:
        """A node more; gives its id."""
        node = self._random.getrandbits(63) + 2
        self.present[node] = node_config
        return node

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return self._random.sample(sorted(self.present), len(self.present))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = f"{next(self._ids)}"
            node = message.metadata.dst_node_id
            if node not in self.silent:
                self._replies[name] = self._answer(node, message)
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived = sorted(set(message_ids) & set(self._replies))
        return [self._replies.pop(name) for name in self._random.sample(arrived, len(arrived))]

    def send_and_receive(self, messages, *, timeout=None) -> Iterable[Message]:
        raise NotImplementedError("it is for the Grid around this one to pull replies")

    def _answer(self, node: int, message: Message) -> Message:
        state = self._states.setdefault(node, RecordDict())
        context = Context(1, node, dict(self.present[node]), state, self._run_config)
        try:
            return self._app(message, context)
        except Exception as error:  # noqa: BLE001 - as a SuperNode does
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
