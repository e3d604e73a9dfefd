"""The Grid in the process itself: for debuggers, tests and small models."""

from collections import deque
from collections.abc import Callable, Iterable

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsim.determinism import kept_globals, torch_threads
from fedsim.simulation.bundle import Bundle, Growing, run_bundle
from fedsim.simulation.grid import ClientAppFactory, Ended, SimulatedGrid
from fedsim.wire.reply.checks import ReplyRules


class InlineGrid(SimulatedGrid):
    """Clients run one after the other, each with `threads` torch threads."""

    def __init__(
        self,
        num_clients: int,
        make_client_app: ClientAppFactory,
        threads: int = 1,
        work_of: Callable[[int], float] | None = None,
        rules: ReplyRules | None = None,
    ) -> None:
        super().__init__(num_clients, work_of, rules)
        self._make_client_app = make_client_app
        self._app: ClientApp | None = None
        self._threads = threads
        self._queue: deque[Bundle] = deque()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | int | None = None) -> Iterable[Message]:
        with kept_globals():
            return super().send_and_receive(messages, timeout=timeout)

    @property
    def _ahead(self) -> int:
        return 1

    def _submit(self, bundle: Bundle) -> None:
        self._queue.append(bundle)

    def _poll(self, timeout: float | int | None) -> list[Ended]:
        if not self._queue:
            return []
        bundle = self._queue.popleft()
        if self._app is None:
            self._app = self._make_client_app()
        with torch_threads(self._threads):
            growing = Growing(bundle.whole, self.rules, bundle.group, bundle.lengths)
            return [Ended(bundle, run_bundle(self._app, bundle.messages, self.context_of, growing))]

    def _abandon(self, keys: set[str]) -> list[Ended]:
        self._queue = deque(bundle for bundle in self._queue if bundle.key not in keys)
        return []

    def close(self) -> None:
        self._queue.clear()
        self._app = None
