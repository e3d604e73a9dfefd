"""A pool of Ray actors: one call at a time on each, retried when a worker dies, bounded in time."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

logger = getLogger(__name__)

MAX_FAILED_STARTS = 3
"""In a row; then the fault is in what the workers run, not in one worker."""

Tag = TypeVar("Tag")
Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Finished(Generic[Tag]):
    """The end of one call: a value, or the reason why there is none."""

    tag: Tag
    attempts: int
    value: Any = None
    error: str | None = None


@dataclass
class _Pending(Generic[Tag]):
    tag: Tag
    call: Call
    attempts: int = 0
    since: float = field(default_factory=time.monotonic)


class ActorPool(Generic[Tag]):
    """Gives each call to the next idle actor, in the order of submission.

    An actor counts as idle once it has started, so that no time limit includes the start of a process.

    Args:
        make_actor: starts one actor.
        size: how many actors there are at first.
        max_retries: how often a call is made again after its actor died.

    Attributes:
        seconds_fetching: that it took to fetch and decode what calls returned, since the pool began.
    """

    def __init__(self, make_actor: Callable[[], Any], size: int, max_retries: int = 2) -> None:
        self.seconds_fetching = 0.0
        self._make_actor = make_actor
        self._max_retries = max_retries
        self._actors: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._failed_starts = 0
        self._idle: deque[Any] = deque()
        self._queue: deque[_Pending[Tag]] = deque()
        self._running: dict[Any, tuple[Any, _Pending[Tag]]] = {}
        self.add(size)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def pending(self) -> int:
        return self.waiting + self.running

    def add(self, count: int) -> None:
        """Start more actors."""
        for _ in range(count):
            actor = self._make_actor()
            self._actors.append(actor)
            self._starting[actor.__ray_ready__.remote()] = actor

    def submit(self, tag: Tag, call: Call) -> None:
        """Queue a call: it is handed an actor and returns the reference of its result."""
        self._queue.append(_Pending(tag, call))
        self._start()

    def wait(self, timeout: float | int | None) -> list[Finished[Tag]]:
        """What has finished, waiting up to `timeout` seconds for the first; None waits for it."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            references = [*self._running, *self._starting]
            if not references:
                return []
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0.0)
            left = None if deadline is None else deadline - time.monotonic()
            if not ready and (left is None or left > 0):
                ready, _ = ray.wait(references, num_returns=1, timeout=left)
            finished = [end for reference in ready if (end := self._take(reference)) is not None]
            self._start()
            if finished or self.pending == 0 or (deadline is not None and time.monotonic() >= deadline):
                return finished

    def cancel(self, chosen: Callable[[Tag], bool]) -> list[Finished[Tag]]:
        """Give up calls: queued ones are dropped, a running one loses its process, which is replaced."""
        dropped = [pending for pending in self._queue if chosen(pending.tag)]
        self._queue = deque(pending for pending in self._queue if not chosen(pending.tag))
        for reference, (actor, pending) in list(self._running.items()):
            if chosen(pending.tag):
                dropped.append(pending)
                self._replace(reference, actor)
        self._start()
        return [Finished(pending.tag, pending.attempts, error="cancelled") for pending in dropped]

    def expire(self, seconds: float) -> list[Finished[Tag]]:
        """Give up calls that have been running for longer than this."""
        now = time.monotonic()
        late = []
        for reference, (actor, pending) in list(self._running.items()):
            if now - pending.since > seconds:
                self._replace(reference, actor)
                late.append(Finished(pending.tag, pending.attempts, error=f"no result within {seconds:g} s"))
        self._start()
        return late

    def close(self) -> None:
        """Stop the actors, so that their CPUs and GPUs are free."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        self._starting.clear()
        self._idle.clear()
        self._queue.clear()
        self._running.clear()

    def _start(self) -> None:
        while self._idle and self._queue:
            actor, pending = self._idle.popleft(), self._queue.popleft()
            pending.attempts += 1
            pending.since = time.monotonic()
            self._running[pending.call(actor)] = (actor, pending)

    def _take(self, reference: Any) -> Finished[Tag] | None:
        if reference in self._starting:
            self._take_started(reference)
            return None
        actor, pending = self._running.pop(reference)
        before = time.perf_counter()
        try:
            value = ray.get(reference)
        except RayTaskError as error:
            self._idle.append(actor)
            return Finished(pending.tag, pending.attempts, error=_last_line(error))
        except RayError as error:
            # Died, was killed for its memory, or lost what it computed: all ask for a fresh worker.
            logger.warning("a worker died at %s: %s", pending.tag, _last_line(error))
            ray.kill(actor)
            self._swap(actor)
            if pending.attempts <= self._max_retries:
                self._queue.appendleft(pending)
                return None
            reason = f"its worker died {pending.attempts} times"
            return Finished(pending.tag, pending.attempts, error=reason)
        self.seconds_fetching += time.perf_counter() - before
        self._idle.append(actor)
        return Finished(pending.tag, pending.attempts, value=value)

    def _take_started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            ray.get(reference)
        except RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise RuntimeError(f"workers cannot start: {_last_line(error)}") from error
            logger.warning("a worker could not start: %s", _last_line(error))
            self._swap(actor)
        else:
            self._failed_starts = 0
            self._idle.append(actor)

    def _replace(self, reference: Any, actor: Any) -> None:
        del self._running[reference]
        ray.kill(actor)
        self._swap(actor)

    def _swap(self, actor: Any) -> None:
        """A fresh actor for one that is gone: a restarted one may still fail the first call it gets."""
        self._actors.remove(actor)
        self.add(1)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
