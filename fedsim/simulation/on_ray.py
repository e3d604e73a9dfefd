"""The Grid on Ray actors: one ClientApp a worker, the global state put once a round."""

from collections import deque
from typing import Any

import ray
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from ray.exceptions import RayActorError, RayTaskError

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

    A worker that dies is restarted and its message sent again, `max_retries` times; then the client
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
        actor = ray.remote(ClientWorker).options(
            num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=-1, max_task_retries=max_retries
        )
        factory = ray.put(make_client_app)
        self._workers = [actor.remote(factory, threads) for _ in range(workers)]
        self._idle: deque[Any] = deque(self._workers)
        self._waiting: deque[Message] = deque()
        self._running: dict[Any, tuple[Any, Message]] = {}
        self._contents: dict[int, tuple[RecordDict, Any]] = {}

    def _submit(self, message: Message) -> None:
        self._waiting.append(message)

    def _start_waiting(self) -> None:
        while self._idle and self._waiting:
            worker, message = self._idle.popleft(), self._waiting.popleft()
            bare = Message(RecordDict(), reply_to=message)
            bare.__dict__["_metadata"] = message.metadata
            context = self.context_of(message.metadata.dst_node_id)
            result = worker.run.remote(bare, [self._put(message.content)], context)
            self._running[result] = (worker, message)

    def _put(self, content: RecordDict) -> Any:
        """One object in Ray's store for all messages of a round, which share their content."""
        known = self._contents.get(id(content))
        if known is not None and known[0] is content:
            return known[1]
        reference = ray.put(content)
        self._contents = {key: value for key, value in self._contents.items() if self._in_use(value[0])}
        self._contents[id(content)] = (content, reference)
        return reference

    def _in_use(self, content: RecordDict) -> bool:
        messages = [m for _, m in self._running.values()] + list(self._waiting)
        return any(message.content is content for message in messages)

    def _poll(self, message_ids: set[str], timeout: float | None) -> list[Message]:
        self._start_waiting()
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        replies = []
        for result in ready:
            worker, message = self._running.pop(result)
            self._idle.append(worker)
            try:
                reply, state = ray.get(result)
            except RayActorError as error:
                reply, state = error_reply(message, f"worker died: {error}", ErrorCode.CLIENT_APP_CRASHED), RecordDict()
            except RayTaskError as error:
                reply, state = error_reply(message, f"worker failed: {error}"), RecordDict()
            self.keep_state(message.metadata.dst_node_id, state)
            replies.append(reply)
        self._start_waiting()
        return replies

    def _give_up(self, message_ids: set[str], reason: str) -> list[Message]:
        late = [message for message in self._waiting if message.metadata.message_id in message_ids]
        self._waiting = deque(m for m in self._waiting if m.metadata.message_id not in message_ids)
        for result, (worker, message) in list(self._running.items()):
            if message.metadata.message_id in message_ids:
                # The worker is stuck in foreign code: a fresh process takes its place.
                ray.kill(worker, no_restart=False)
                self._idle.append(worker)
                del self._running[result]
                late.append(message)
        return [error_reply(message, reason, ErrorCode.REPLY_MESSAGE_UNAVAILABLE) for message in late]

    def close(self) -> None:
        """Stop the workers, so that their CPUs and GPUs are free for attacks that are still queued."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []
        self._idle.clear()
        self._running.clear()
        self._contents.clear()
