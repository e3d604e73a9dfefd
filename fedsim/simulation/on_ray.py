"""The Grid on Ray actors: one ClientApp a worker, the global state put once a round."""

from typing import Any

import ray
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedsim.simulation.actor_pool import ActorPool, Finished
from fedsim.simulation.grid import ClientAppFactory, OnReply, SimulatedGrid, deliver, error_reply


class ClientWorker:
    """Runs in an actor: builds its ClientApp once and keeps the last content it was sent."""

    def __init__(self, make_client_app: ClientAppFactory, threads: int) -> None:
        torch.set_num_threads(threads)
        self._app = make_client_app()
        self._content_id = ""
        self._content = RecordDict()

    def run(self, message: Message, content_ref: list[Any], context: Context) -> tuple[Message, RecordDict]:
        # In a list a reference arrives as a reference: fetched and decoded once a round, not once a message.
        (reference,) = content_ref
        if reference.hex() != self._content_id:
            self._content = ray.get(reference)
            self._content_id = reference.hex()
        message.content = self._content
        reply = deliver(self._app, message, context)
        return reply, context.state


class RayGrid(SimulatedGrid):
    """Clients run on `workers` Ray actors; Ray must be initialised.

    A worker that dies is replaced and its message sent again, `max_retries` times; then the client
    answers with an error.

    Args:
        threads: torch threads of a client. Part of the configuration: it changes the bits of the results.
        num_cpus, num_gpus: Ray's admission request of one worker, fractions allowed.
    """

    def __init__(
        self,
        num_clients: int,
        make_client_app: ClientAppFactory,
        workers: int,
        threads: int = 1,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        max_retries: int = 2,
        on_reply: OnReply | None = None,
    ) -> None:
        super().__init__(num_clients, on_reply)
        actor = ray.remote(ClientWorker).options(num_cpus=num_cpus, num_gpus=num_gpus)
        self._pool: ActorPool[str] = ActorPool(lambda: actor.remote(make_client_app, threads), workers, max_retries)
        self._sent: dict[str, Message] = {}
        self._early: dict[str, Message] = {}
        self._content: tuple[RecordDict, Any] | None = None

    def _submit(self, message: Message) -> None:
        # The content travels by reference: the message itself is sent without it.
        bare = Message(RecordDict(), reply_to=message)
        bare.__dict__["_metadata"] = message.metadata
        content, node_id = self._put(message.content), message.metadata.dst_node_id
        self._sent[message.metadata.message_id] = message
        self._pool.submit(
            message.metadata.message_id,
            lambda worker: worker.run.remote(bare, [content], self.context_of(node_id)),
        )

    def _put(self, content: RecordDict) -> Any:
        """One object in Ray's store for all messages of a round, which share their content."""
        if self._content is None or self._content[0] is not content:
            self._content = (content, ray.put(content))
        return self._content[1]

    def _poll(self, message_ids: set[str], timeout: float | int | None) -> list[Message]:
        early = [self._early.pop(message_id) for message_id in message_ids & set(self._early)]
        if early:
            return early
        for end in self._pool.wait(timeout):
            self._early[end.tag] = self._answer(end, ErrorCode.CLIENT_APP_CRASHED)
        return [self._early.pop(message_id) for message_id in message_ids & set(self._early)]

    def _give_up(self, message_ids: set[str], reason: str) -> list[Message]:
        ends = self._pool.cancel(lambda message_id: message_id in message_ids)
        return [error_reply(self._sent.pop(e.tag), reason, ErrorCode.REPLY_MESSAGE_UNAVAILABLE) for e in ends]

    def _answer(self, end: Finished[str], code: int) -> Message:
        message = self._sent.pop(end.tag)
        if end.error is not None:
            return error_reply(message, end.error, code)
        reply, state = end.value
        self.keep_state(message.metadata.dst_node_id, state)
        assert isinstance(reply, Message)
        return reply

    def close(self) -> None:
        """Stop the workers, so that their CPUs and GPUs are free for attacks that are still queued."""
        self._pool.close()
        self._sent.clear()
        self._early.clear()
        self._content = None
