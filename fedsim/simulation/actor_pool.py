"""A pool of Ray actors: one call at a time on each, retried when a worker dies, bounded in time."""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from fedsim.errors import ConfigError, RunError

logger = getLogger(__name__)

MAX_FAILED_STARTS = 3
"""In a row; then the fault is in what the workers run, not in one worker."""

PATIENCE = 30.0
"""Seconds that calls wait without any worker until somebody is told, and then until told again."""

NODE_DIED = "its node has died"
"""What Ray says of actors, started or not, whose node is gone; the error has no other sign of it."""

REFUSAL = f"{ConfigError.__module__}.{ConfigError.__qualname__}: "
"""How the last line of an error begins where a worker refused its settings."""

Tag = TypeVar("Tag")
Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Finished(Generic[Tag]):
    """The end of one call: a value, or the reason why there is none.

    Attributes:
        seconds: that it ran, its attempts together; without the actors' starts.
        actor: that made it, where that goes on.
    """

    tag: Tag
    attempts: int
    value: Any = None
    error: str | None = None
    seconds: float = 0.0
    actor: Any = None


class PooledWorker:
    """Base of the classes that pools make actors of."""

    def ready(self) -> None:
        """Answered once the constructor is through; through `ray://`, actors have no methods but their own."""


@dataclass(order=True)
class _Pending(Generic[Tag]):
    """Those of lowest `order` go first: cheap before dear, then as they were submitted."""

    order: tuple[float, int]
    tag: Tag = field(compare=False)
    call: Call = field(compare=False)
    attempts: int = field(default=0, compare=False)
    retries: int = field(default=0, compare=False)
    since: float = field(default=0.0, compare=False)
    before: float = field(default=0.0, compare=False)

    def ran(self) -> float:
        """Seconds of this attempt and those before it."""
        return self.before + (time.monotonic() - self.since if self.attempts else 0.0)


class ActorPool(Generic[Tag]):
    """Gives each call to an idle actor: those of least cost first, else in the order of submission.

    An actor counts as idle once it has started, so that no time limit includes the start of a process. Actors that a
    cluster has no room for yet are used as soon as it has; meanwhile the others do the work.

    A worker's death is logged with the tag of its call, as `str` has it.

    Args:
        make_actor: starts one `PooledWorker`, given its number from 0; who replaces another has the same.
        size: how many actors there are at first.
        max_retries: how often a call is made again after its actor died.
        on_waiting: told how many seconds calls have been waiting while no actor could start; by default nobody.
        spent: whether who returned this value is of no use any more, and is replaced.

    Attributes:
        seconds_fetching: that it took to fetch and decode what calls returned, since the pool began.
    """

    def __init__(
        self,
        make_actor: Callable[[int], Any],
        size: int,
        max_retries: int = 2,
        on_waiting: Callable[[float], None] = lambda _: None,
        spent: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        self.seconds_fetching = 0.0
        self._make_actor = make_actor
        self._max_retries = max_retries
        self._on_waiting = on_waiting
        self._spent = spent
        self._numbers: dict[Any, int] = {}
        self._starting: dict[Any, Any] = {}
        self._failed_starts = 0
        self._submitted = 0
        self._idle: deque[Any] = deque()
        self._queue: list[_Pending[Tag]] = []
        self._running: dict[Any, tuple[Any, _Pending[Tag]]] = {}
        self._helpless_since: float | None = None
        self._reported = 0.0
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

    @property
    def size(self) -> int:
        """Actors that there are, those that are still to start among them."""
        return len(self._numbers)

    @property
    def started(self) -> int:
        """Actors that work or could."""
        return len(self._numbers) - len(self._starting)

    @property
    def references(self) -> list[Any]:
        """References of everything that `wait` waits for."""
        return [*self._running, *self._starting]

    def add(self, count: int) -> None:
        """Start more actors."""
        used = set(self._numbers.values())
        free = (number for number in range(len(used) + count) if number not in used)
        for number, _ in zip(free, range(count), strict=False):
            self._add(number)

    def _add(self, number: int) -> None:
        actor = self._make_actor(number)
        self._numbers[actor] = number
        self._starting[actor.ready.remote()] = actor

    def submit(self, tag: Tag, call: Call, cost: float = 0.0, retries: int | None = None, kept_by: Any = None) -> bool:
        """Queue a call: it is handed an actor and returns the reference of its result.

        Args:
            retries: in place of `max_retries`.
            kept_by: the actor that has kept what the call needs; the next one is for it, if it is idle.

        Returns:
            Whether that one is.
        """
        self._submitted += 1
        if idle := kept_by in self._idle:
            self._idle.remove(kept_by)
            self._idle.appendleft(kept_by)
        retries = self._max_retries if retries is None else retries
        insort(self._queue, _Pending((cost, self._submitted), tag, call, retries=retries))
        self._start()
        return idle

    def wait(self, timeout: float | int | None) -> list[Finished[Tag]]:
        """What has finished, waiting up to `timeout` seconds for the first; None waits for it."""
        return wait_for([self], timeout)

    def take(self, ready: Iterable[Any]) -> list[Finished[Tag]]:
        """What has finished of these references, which are ready; calls that waited go to who is idle now."""
        mine = [reference for reference in ready if reference in self._running or reference in self._starting]
        finished = [end for reference in mine if (end := self._take(reference)) is not None]
        self._start()
        self._tell()
        return finished

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether an actor waits for calls."""
        return bool(self._idle) and not self._queue

    def overdue(self, seconds: float) -> list[tuple[Tag, Any]]:
        """Calls that have been running for longer than this and the actor of each, the longest first."""
        before = time.monotonic() - seconds
        late = [(one.since, one.tag, actor) for actor, one in self._running.values() if one.since < before]
        return [(tag, actor) for _, tag, actor in sorted(late, key=lambda one: one[0])]

    def at_work(self) -> list[tuple[Tag, Any]]:
        """Calls that are running, and the actor of each."""
        return [(pending.tag, actor) for actor, pending in self._running.values()]

    def cancel(self, chosen: Callable[[Tag], bool]) -> list[Finished[Tag]]:
        """Give up calls: queued ones are dropped, a running one loses its process, which is replaced."""
        dropped = [pending for pending in self._queue if chosen(pending.tag)]
        self._queue = [pending for pending in self._queue if not chosen(pending.tag)]
        for reference, (actor, pending) in list(self._running.items()):
            if chosen(pending.tag):
                dropped.append(pending)
                self._replace(reference, actor)
        self._start()
        return [
            Finished(pending.tag, pending.attempts, error="cancelled", seconds=pending.ran()) for pending in dropped
        ]

    def expire(self, limit: float | Callable[[Tag, int], float]) -> list[Finished[Tag]]:
        """Give up calls that have been running for more seconds than this, or than it gives for each attempt."""
        now = time.monotonic()
        late = []
        for reference, (actor, pending) in list(self._running.items()):
            seconds = limit(pending.tag, pending.attempts) if callable(limit) else limit
            if now - pending.since > seconds:
                self._replace(reference, actor)
                reason = f"no result within {seconds:g} s"
                late.append(Finished(pending.tag, pending.attempts, error=reason, seconds=pending.ran()))
        self._start()
        return late

    def release(self) -> None:
        """Stop the actors, so that their CPUs and GPUs are free; calls wait for others that are `add`ed."""
        for actor in self._numbers:
            ray.kill(actor)
        for _, pending in self._running.values():
            pending.attempts -= 1
            insort(self._queue, pending)
        self._numbers.clear()
        self._starting.clear()
        self._idle.clear()
        self._running.clear()

    def close(self) -> None:
        """Stop the actors and forget all calls."""
        self.release()
        self._queue.clear()

    def _tell(self) -> None:
        now = time.monotonic()
        if not self._queue or self.started or not self._numbers:
            self._helpless_since = None
            return
        if self._helpless_since is None:
            self._helpless_since = self._reported = now
        elif now - self._reported >= PATIENCE:
            self._reported = now
            self._on_waiting(now - self._helpless_since)

    def _start(self) -> None:
        while self._idle and self._queue:
            actor, pending = self._idle.popleft(), self._queue.pop(0)
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
            return Finished(pending.tag, pending.attempts, error=_last_line(error), seconds=pending.ran(), actor=actor)
        except RayError as error:
            # Died, was killed for its memory, or lost what it computed: all ask for a fresh worker.
            logger.warning("a worker died at %s: %s", pending.tag, _last_line(error))
            ray.kill(actor)
            self._swap(actor)
            pending.before = pending.ran()
            if pending.attempts <= pending.retries:
                insort(self._queue, pending)
                return None
            reason = f"its worker died {'once' if pending.attempts == 1 else f'{pending.attempts} times'}"
            return Finished(pending.tag, pending.attempts, error=reason, seconds=pending.before)
        self.seconds_fetching += time.perf_counter() - before
        if self._spent(value):
            ray.kill(actor)
            self._swap(actor)
            actor = None
        else:
            self._idle.append(actor)
        return Finished(pending.tag, pending.attempts, value=value, seconds=pending.ran(), actor=actor)

    def _take_started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            ray.get(reference)
        except RayError as error:
            reason = _last_line(error)
            self._failed_starts += 0 if _node_died(error) else 1
            if self._failed_starts >= MAX_FAILED_STARTS or reason.startswith(REFUSAL):
                raise RunError(f"workers cannot start: {reason.removeprefix(REFUSAL)}") from error
            logger.warning("a worker could not start: %s", reason)
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
        self._add(self._numbers.pop(actor))


def wait_for(pools: Sequence[ActorPool[Tag]], timeout: float | int | None) -> list[Finished[Tag]]:
    """What has finished in any of these, waiting up to `timeout` seconds for the first; None waits for it."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        references = [reference for pool in pools for reference in pool.references]
        if not references:
            return []
        ready, _ = ray.wait(references, num_returns=len(references), timeout=0.0)
        left = PATIENCE if deadline is None else min(PATIENCE, deadline - time.monotonic())
        if not ready and left > 0:
            ready, _ = ray.wait(references, num_returns=1, timeout=left)
        finished = [end for pool in pools for end in pool.take(ready)]
        over = deadline is not None and time.monotonic() >= deadline
        if finished or over or not any(pool.pending for pool in pools):
            return finished


def _node_died(error: RayError) -> bool:
    return isinstance(error, RayActorError) and (error.preempted or NODE_DIED in str(error))


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
