"""The Grid on Ray actors: one ClientApp a worker, the global state put once a round."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from logging import getLogger
from typing import Any

import ray
import torch
from flwr.app import Message, Metadata, RecordDict
from ray.exceptions import RayError

from fedsim.determinism import kept_globals
from fedsim.errors import ConfigError
from fedsim.memory.kept import settle
from fedsim.memory.peak import Meter
from fedsim.simulation.actor_pool import ActorPool, Finished, PooledWorker
from fedsim.simulation.bundle import Bundle, BundleReplies, Growing, key_of, run_bundle
from fedsim.simulation.grid import ClientAppFactory, Ended, SimulatedGrid, make_context
from fedsim.simulation.placement import Request, anywhere, describe_room
from fedsim.wire.reply.checks import ReplyRules

logger = getLogger(__name__)

AHEAD = 2
"""Bundles under way for each worker."""

LEAST, SPAN, SPAN_OF_SUMS = 0.02, 0.05, 0.5
"""Seconds of work that a call should have at least, and at most: it costs some milliseconds, whatever is in it."""

AT_ONCE = 0.25
"""Seconds of work for each worker that are left, from which a part is kept for who is done first."""

MOST_TOGETHER = 16
"""Messages, or groups of them whose updates are summed, in one call."""

OVERDUE = 2.0
"""Seconds after which a worker's messages that it has not begun go to workers that have nothing to do."""

SECONDS_TO_TELL = 5.0
"""For workers that ran out of time to say what they had finished."""

WATCH = "watch"
"""Ray's name for the thread that answers while a client is at work."""


class ClientWorker(PooledWorker):
    """Runs in an actor: builds its ClientApp once and keeps the last content it was sent.

    Raises:
        ConfigError: the ClientApp cannot be built on this node, which is named.
    """

    def __init__(
        self, make_client_app: ClientAppFactory, num_clients: int, threads: int, rules: ReplyRules | None = None
    ) -> None:
        torch.set_num_threads(threads)
        self._rules = rules
        self._num_clients = num_clients
        try:
            self._app = make_client_app()
        except ConfigError as error:
            where = f"on node {ray.util.get_node_ip_address()} of the cluster"
            said = error.fault or f"must be {error.expected}"
            raise ConfigError(error.key, error.value, fault=f"{said} ({where})") from error
        settle()
        self._meter = Meter()
        self._at = "", Growing(None)
        self._content_id = ""
        self._content = RecordDict()

    def run(
        self,
        content_ref: list[Any],
        metadata: list[Metadata],
        states: dict[int, RecordDict],
        whole: frozenset[int] | None,
        group: int = 0,
        lengths: tuple[int, ...] = (),
    ) -> BundleReplies:
        growing = Growing(whole, self._rules, group, lengths)
        self._at = key_of(metadata), growing
        # In a list a reference arrives as a reference: fetched and decoded once a round, not once a message.
        (reference,) = content_ref
        if reference.hex() != self._content_id:
            self._content = ray.get(reference)
            self._content_id = reference.hex()
        messages = [Message(self._content, metadata=one) for one in metadata]  # type: ignore[call-overload]
        with kept_globals():
            answer = run_bundle(
                self._app, messages, lambda node: make_context(node, self._num_clients, states.get(node)), growing
            )
        answer.memory = self._meter.read()
        return answer

    def so_far(self, key: str) -> BundleReplies:
        """What has come of this bundle, where it is at it; what comes later is lost."""
        at, growing = self._at
        return growing.end() if at == key else BundleReplies()

    def stop_early(self, key: str) -> int | None:
        """How many messages of this bundle it will answer, at work on the last of them; None where it is done."""
        at, growing = self._at
        return growing.stop_early() if at == key else None


class RayGrid(SimulatedGrid):
    """Clients run on `workers` Ray actors; Ray must be initialised.

    A worker that dies is replaced and its messages sent again, `max_retries` times; then the clients of a group are
    tried one by one, and one that loses its worker again answers with an error.

    Args:
        threads: torch threads of a client. Part of the configuration: it changes the bits of the results.
        request: what Ray sets aside for one worker, fractions allowed.
        place: Ray's scheduling strategy for the worker of this number.
    """

    def __init__(
        self,
        num_clients: int,
        make_client_app: ClientAppFactory,
        workers: int,
        threads: int = 1,
        request: Request | None = None,
        max_retries: int = 2,
        work_of: Callable[[int], float] | None = None,
        place: Callable[[int], Any] = anywhere,
        rules: ReplyRules | None = None,
    ) -> None:
        super().__init__(num_clients, work_of, rules)
        self._request = request or Request()
        actor = ray.remote(concurrency_groups={WATCH: 1})(ClientWorker)
        self._workers = workers

        def start(number: int) -> Any:
            options = {"scheduling_strategy": place(number)} | self._request.options()
            return actor.options(**options).remote(make_client_app, num_clients, threads, rules)

        self._pool: ActorPool[Bundle] = ActorPool(start, workers, max_retries, self._tell_waiting)
        self._content: tuple[RecordDict, Any] | None = None
        self._asked: dict[str, tuple[Bundle, Any]] = {}
        self._begun: dict[str, int] = {}
        self._rest: list[tuple[Bundle, int]] = []
        self._share = 0, 0, 0  # bundles of a call, workers that are still to get as many, bundles that waited then

    @property
    def _ready(self) -> bool:
        return self._pool.started > 0

    @property
    def _ahead(self) -> int:
        return AHEAD * self._workers

    def _submit(self, bundle: Bundle) -> None:
        # The content travels by reference: of the messages only their metadata are sent.
        content = self._put(bundle.messages[0].content)

        def call(worker: Any) -> Any:
            before = time.perf_counter()
            self._asked.pop(bundle.key, None)  # whoever was asked is dead
            metadata = [message.metadata for message in self._kept(bundle)]
            nodes = [one.dst_node_id for one in metadata]
            states = {node: self.states[node] for node in nodes if node in self.states}
            reference = worker.run.remote([content], metadata, states, bundle.whole, bundle.group, bundle.lengths)
            self.traffic.send += time.perf_counter() - before
            return reference

        # Several groups are split as soon as a worker dies at them: each is tried again by itself.
        self._pool.submit(bundle, call, retries=0 if len(bundle.lengths) > 1 else None)

    def _put(self, content: RecordDict) -> Any:
        """One object in Ray's store for all messages of a round, which share their content."""
        if self._content is None or self._content[0] is not content:
            before = time.perf_counter()
            self._content = (content, ray.put(content))
            self.traffic.send += time.perf_counter() - before
        return self._content[1]

    def _tell_waiting(self, seconds: float) -> None:
        self.on_waiting(f"no client worker has started for {seconds:.0f} s: {describe_room(self._request)}")

    def _poll(self, timeout: float | int | None) -> list[Ended]:
        before = self._pool.seconds_fetching
        ended = [self._ended(end) for end in self._pool.wait(timeout)]
        self.traffic.receive += self._pool.seconds_fetching - before
        return ended

    def _together(self, waiting: int, seconds: float, whole: frozenset[int] | None) -> int:
        """Each worker in turn gets the same, a part of what waits; then of the rest: so all end at about the same time.

        Hummel, Schonberg and Flynn 1992: factoring. Whole updates arrive one by one anyway, of sums few are wanted: all
        that is left of them goes out where a further call would cost more than an uneven end.
        """
        seconds = max(seconds, 1e-6)
        summed = whole is not None and len(whole) <= MOST_TOGETHER  # else a call would bring many updates besides
        size, left, last = self._share
        if left == 0 or waiting > last:
            few = summed and waiting * seconds < AT_ONCE * self._workers
            part = 1.0 if few else 0.75 if summed else 0.5
            size, left = math.ceil(waiting * part / self._workers), self._workers
        self._share = size, left - 1, waiting
        most = int((SPAN_OF_SUMS if summed else SPAN) / seconds)
        return max(1, min(MOST_TOGETHER, max(size, int(LEAST / seconds)), most))

    def _taken_back(self) -> list[tuple[Bundle, int]]:
        """Asked of the slowest while others have nothing to do; the answer comes at a later call."""
        if self._pool.has_nothing_to_do and not self._asked:
            for bundle, actor in self._pool.overdue(OVERDUE):
                if len(bundle.messages) > 1 and bundle.key not in self._begun:
                    reference = actor.stop_early.options(concurrency_group=WATCH).remote(bundle.key)
                    self._asked[bundle.key] = bundle, reference
                    break
        references = [reference for _, reference in self._asked.values()]
        ready = set(ray.wait(references, num_returns=len(references), timeout=0)[0] if references else ())
        for key, (bundle, reference) in list(self._asked.items()):
            if reference in ready:
                del self._asked[key]
                if (begun := _begun(reference)) is not None:
                    self._begun[key] = begun
                    self._rest.append((bundle, begun))
        taken, self._rest = self._rest, []
        return taken

    def _kept(self, bundle: Bundle) -> Bundle:
        """Without what was taken back."""
        begun = self._begun.get(bundle.key)
        return bundle if begun is None else replace(bundle, messages=bundle.messages[:begun])

    def _ended(self, end: Finished[Bundle]) -> Ended:
        assert end.value is None or isinstance(end.value, BundleReplies)
        bundle, answer = self._kept(end.tag), end.value
        self._forget(bundle.key)
        if answer is not None and len(answer.replies) < len(bundle.messages):
            # It stopped early, and its word for that is still on the way.
            self._rest.append((bundle, len(answer.replies)))
        return Ended(bundle, answer, end.error or "")

    def _forget(self, key: str) -> None:
        self._asked.pop(key, None)
        self._begun.pop(key, None)

    def _abandon(self, keys: set[str]) -> list[Ended]:
        late = [(bundle, actor) for bundle, actor in self._pool.at_work() if bundle.key in keys]
        for key in keys:
            self._forget(key)
        asked = {
            actor.so_far.options(concurrency_group=WATCH).remote(bundle.key): bundle
            for bundle, actor in late
            if len(bundle.messages) > 1
        }
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS_TO_TELL) if asked else ([], [])
        ended = []
        for reference in ready:
            try:
                ended.append(Ended(asked[reference], ray.get(reference)))
            except RayError as error:
                logger.warning("a worker that ran out of time says nothing: %s", type(error).__name__)
        self._pool.cancel(lambda bundle: bundle.key in keys)
        return ended

    def close(self) -> None:
        """Stop the workers, so that their CPUs and GPUs are free for attacks that are still queued."""
        self._pool.close()
        self._content = None


def _begun(reference: Any) -> int | None:
    try:
        begun: int | None = ray.get(reference)
    except RayError as error:
        logger.warning("a worker that is slow says nothing: %s", type(error).__name__)
        return None
    return begun
