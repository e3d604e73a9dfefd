"""The Grid in the process itself: for debuggers, tests and small models."""

from collections import deque

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedsim.simulation.grid import ClientAppFactory, OnReply, SimulatedGrid, deliver, error_reply


class InlineGrid(SimulatedGrid):
    """Clients run one after the other, each with `threads` torch threads."""

    def __init__(
        self, num_clients: int, make_client_app: ClientAppFactory, threads: int = 1, on_reply: OnReply | None = None
    ) -> None:
        super().__init__(num_clients, on_reply)
        self._make_client_app = make_client_app
        self._app: ClientApp | None = None
        self._threads = threads
        self._queue: deque[Message] = deque()

    def _submit(self, message: Message) -> None:
        self._queue.append(message)

    def _poll(self, message_ids: set[str], timeout: float | int | None) -> list[Message]:
        message = next((m for m in self._queue if m.metadata.message_id in message_ids), None)
        if message is None:
            return []
        self._queue.remove(message)
        if self._app is None:
            self._app = self._make_client_app()
        context = self.context_of(message.metadata.dst_node_id)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            reply = deliver(self._app, message, context)
        finally:
            torch.set_num_threads(threads)
        self.keep_state(context.node_id, context.state)
        return [reply]

    def _give_up(self, message_ids: set[str], reason: str) -> list[Message]:
        late = [m for m in self._queue if m.metadata.message_id in message_ids]
        for message in late:
            self._queue.remove(message)
        return [error_reply(message, reason, ErrorCode.REPLY_MESSAGE_UNAVAILABLE) for message in late]

    def close(self) -> None:
        self._queue.clear()
        self._app = None
