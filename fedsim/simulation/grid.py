"""What every simulated Grid has in common: node ids, message ids, order of replies."""

import itertools
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable
from logging import getLogger
from time import monotonic

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

logger = getLogger(__name__)

SERVER_NODE_ID = 1
FIRST_CLIENT_NODE_ID = 2
RUN_ID = 1

ClientAppFactory = Callable[[], ClientApp]
OnReply = Callable[[Message], None]


def node_id_of(partition_id: int) -> int:
    return partition_id + FIRST_CLIENT_NODE_ID


def partition_of(node_id: int) -> int:
    return node_id - FIRST_CLIENT_NODE_ID


class SimulatedGrid(Grid):
    """A Flower `Grid` whose nodes are partitions 0 … n-1, with ids that are the same in every run.

    Replies of `send_and_receive` come in the order of the messages, whatever the order of arrival. A
    client that raises, dies or exceeds the timeout answers with an error message, as Flower's does.

    Args:
        num_clients: how many nodes there are; they are numbers, not objects.
        on_reply: called in the server's thread for each reply as it arrives.
    """

    def __init__(self, num_clients: int, on_reply: OnReply | None = None) -> None:
        self.num_clients = num_clients
        self.on_reply = on_reply
        self._message_ids = itertools.count(1)
        self._states: dict[int, RecordDict] = {}
        self._run = Run.create_empty(run_id=RUN_ID)
        # Flower's strategies construct messages without naming their sender: it is read from here.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SERVER_NODE_ID, 1

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST_CLIENT_NODE_ID, FIRST_CLIENT_NODE_ID + self.num_clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"{next(self._message_ids)}"
            # Flower has no public setter: a real SuperLink assigns ids behind the API.
            message.metadata.__dict__["_message_id"] = message_id
            self._submit(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._poll(set(message_ids), 0.0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | int | None = None) -> Iterable[Message]:
        order = list(self.push_messages(messages))
        missing = set(order)
        replies: dict[str, Message] = {}
        deadline = None if timeout is None else monotonic() + timeout
        while missing:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                late = self._give_up(missing, f"no reply within {timeout:g} s")
                arrived = late
            else:
                arrived = self._poll(missing, left)
            for reply in arrived:
                reply_to = reply.metadata.reply_to_message_id
                replies[reply_to] = reply
                missing.discard(reply_to)
                if self.on_reply is not None:
                    self.on_reply(reply)
        return [replies[message_id] for message_id in order]

    def context_of(self, node_id: int) -> Context:
        """The node's context; its state persists between messages only where the client wrote to it."""
        return Context(
            run_id=RUN_ID,
            node_id=node_id,
            node_config={"partition-id": partition_of(node_id), "num-partitions": self.num_clients},
            state=self._states.get(node_id, RecordDict()),
            run_config={},
        )

    def keep_state(self, node_id: int, state: RecordDict) -> None:
        if state:
            self._states[node_id] = state

    @abstractmethod
    def _submit(self, message: Message) -> None:
        """Take a message for delivery."""

    @abstractmethod
    def _poll(self, message_ids: set[str], timeout: float | int | None) -> list[Message]:
        """Replies to any of these messages: at least one, unless `timeout` seconds pass first."""

    @abstractmethod
    def _give_up(self, message_ids: set[str], reason: str) -> list[Message]:
        """Abandon these messages and answer each with an error."""

    @abstractmethod
    def close(self) -> None:
        """Release the workers."""


def error_reply(message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION) -> Message:
    return Message(Error(code, reason), reply_to=message)


def deliver(app: ClientApp, message: Message, context: Context) -> Message:
    """Run the client; whatever it raises becomes an error reply, as on a SuperNode."""
    try:
        return app(message, context)
    except Exception as error:  # noqa: BLE001 - the client is foreign code: its faults are answers
        logger.warning("client %s raised:\n%s", context.node_config["partition-id"], traceback.format_exc())
        return error_reply(message, f"{type(error).__name__}: {error}")
