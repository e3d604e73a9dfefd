"""Attacks beside the training: queued, retried, timed out, never in its way."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from attacks.building import build_attack
from attacks.running import attack_device, breaks_process, reads_history, run_attack
from attacks.session import discard
from fedsim.determinism import torch_threads
from fedsim.errors import RunError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.results import score_against
from fedsim.observation import Observation
from fedsim.public_images import PublicImages
from fedsim.result import AttackResult
from fedsim.simulation.actor_pool import ActorPool, Finished, PooledWorker, wait_for
from fedsim.simulation.placement import Request, anywhere, describe_room
from fedsim.update import State, under
from server.attack_queue.pending import Unfinished

logger = getLogger(__name__)

PUBLIC = "public_images:"
"""Before the names of public images, among those of parameters."""
PATIENCE = 60.0
"""Seconds that training waits in all for a full queue while no attack worker could start; then the queue may grow."""

OnResult = Callable[[AttackResult, GroundTruth | None], None]


@dataclass(frozen=True)
class _Queued:
    """`lost`: the result of an attack whose worker brings none."""

    lost: AttackResult
    truth: GroundTruth | None = field(repr=False)

    def __str__(self) -> str:
        return f"{self.lost.attack} on {self.lost.observation}"


class AttackScheduler(ABC):
    """Runs every configured attack on every observation submitted.

    Args:
        attacks: `cfg.attack`: settings by name.
        on_result: called in the server's process with each result.
        scratch: where unfinished attacks keep what another try goes on from; None: each try starts anew.
    """

    def __init__(
        self, attacks: dict[str, dict[str, Any]], seed: int, on_result: OnResult, scratch: Path | None = None
    ) -> None:
        self.attacks = attacks
        self.seed = seed
        self.on_result = on_result
        self.scratch = scratch
        self.submitted = 0
        self.finished = 0

    def submit(
        self,
        observation: Observation,
        truth: GroundTruth | None,
        skip: frozenset[str] = frozenset(),
        earlier: Sequence[Observation] = (),
    ) -> None:
        """Queue all attacks on this observation, less those named in `skip`.

        Args:
            earlier: of the same client's same images, for attacks that read several rounds.
        """
        if names := [name for name in self.attacks if name not in skip]:
            self.submitted += len(names)
            self._queue(observation, truth, names, earlier)

    @abstractmethod
    def _queue(
        self, observation: Observation, truth: GroundTruth | None, names: list[str], earlier: Sequence[Observation]
    ) -> None:
        """Run these attacks, now or on workers."""

    @abstractmethod
    def collect(self) -> None:
        """Take what has finished, without waiting."""

    @abstractmethod
    def drain(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Wait for everything that was submitted."""

    def unfinished(self) -> list[Unfinished]:
        """What attacks are still at work on; nothing where they run at once."""
        return []

    def backlog(self) -> dict[str, int]:
        """How many attacks wait for a worker, and how many run; none where they run at once."""
        return {"attacks_waiting": 0, "attacks_running": 0}

    def close(self) -> None:  # noqa: B027 - the inline scheduler has nothing to release
        """Release the workers."""

    def _finish(self, result: AttackResult, truth: GroundTruth | None, stopped: bool = False) -> None:
        """`stopped`: a later call may go on with it; else there is nothing to go on from any more."""
        self.finished += 1
        self.on_result(result, truth)
        if self.scratch is not None and not stopped:
            discard(self.scratch, [result.observation], result.attack)


class InlineAttacks(AttackScheduler):
    """Attacks at once, in the process, with as many torch threads as a worker would have.

    Args:
        num_gpus: 0 keeps them on the CPU.
    """

    def __init__(
        self,
        attacks: dict[str, dict[str, Any]],
        seed: int,
        on_result: OnResult,
        threads: int = 1,
        scratch: Path | None = None,
        num_gpus: float = 0.0,
    ) -> None:
        super().__init__(attacks, seed, on_result, scratch)
        self._threads = threads
        self._device = attack_device(num_gpus)

    def _queue(
        self, observation: Observation, truth: GroundTruth | None, names: list[str], earlier: Sequence[Observation]
    ) -> None:
        with torch_threads(self._threads):
            for name in names:
                settings = self.attacks[name]
                result = run_attack(observation, name, settings, self.seed, self._device, self.scratch, earlier)
                self._finish(score_against(result, truth), truth)
                if breaks_process(result):
                    raise RunError(f"{name} on {result.observation}: {result.reason}")

    def collect(self) -> None:
        """Nothing is ever under way."""

    def drain(self, on_progress: Callable[[], None] = lambda: None) -> None:
        on_progress()


class AttackWorker(PooledWorker):
    """Runs in an actor; keeps what the last observation shares with others of its round."""

    def __init__(self, threads: int, num_gpus: float, scratch: Path | None = None) -> None:
        torch.set_num_threads(threads)
        self._scratch = scratch
        self._device = attack_device(num_gpus)
        self._shared_id = ""
        self._shared: State = {}

    def attack(
        self,
        observation: Observation,
        shared: list[Any],
        name: str,
        settings: dict[str, Any],
        seed: int,
        earlier: Sequence[Observation],
    ) -> AttackResult:
        (reference,) = shared
        if reference.hex() != self._shared_id:
            self._shared = _fetch_shared(reference)
            self._shared_id = reference.hex()
        return run_attack(_whole(observation, self._shared), name, settings, seed, self._device, self._scratch, earlier)

    def score(self, result: AttackResult, truth: GroundTruth | None) -> AttackResult:
        """A call of its own: nothing that runs during the attack has the truth."""
        return score_against(result, truth)


def _same_tensors(left: State, right: State) -> bool:
    """The very same ones under the same names, in whichever dict."""
    return left.keys() == right.keys() and all(left[name] is tensor for name, tensor in right.items())


def _shared_of(observation: Observation) -> State:
    """What all observations of a round hold: the global state, and the public images, under a prefix."""
    public = {} if observation.public_images is None else observation.public_images.tensors()
    return {**observation.global_state, **{f"{PUBLIC}{name}": tensor for name, tensor in public.items()}}


def _light(observation: Observation) -> Observation:
    return replace(observation, global_state={}, public_images=None)


def _whole(light: Observation, shared: State) -> Observation:
    public = under(PUBLIC, shared)
    state = {name: tensor for name, tensor in shared.items() if not name.startswith(PUBLIC)}
    return replace(light, global_state=state, public_images=PublicImages(**public) if public else None)


def _fetch_shared(reference: Any) -> State:
    # Copied: torch knows no read-only tensors, and a write into Ray's shared memory would be a crash.
    return {name: torch.from_numpy(array.copy()) for name, array in ray.get(reference).items()}


def _fetch(observation: Any, shared: Any) -> Observation:
    try:
        return _whole(ray.get(observation), _fetch_shared(shared))
    except RayError as error:
        raise OSError(f"an observation is lost from Ray's store: {error}") from error


@dataclass(frozen=True)
class Crew:
    """Attack workers of one kind.

    Attributes:
        workers: how many attacks run at once.
        request: what Ray sets aside for one worker.
        threads: torch threads of a worker.
        timeout: seconds for one attack, after which its worker is replaced and it counts as failed.
    """

    workers: int = 1
    request: Request = field(default_factory=Request)
    threads: int = 1
    timeout: float = 3600.0


class RayAttacks(AttackScheduler):
    """Pools of Ray actors work through a bounded queue, cheap attacks first.

    Args:
        crew: the workers of all attacks but those in `crews`.
        crews: workers of their own, by the attack's name; equal ones are shared.
        backlog: queued attacks beyond which `submit` waits, so that memory stays bounded.
        max_retries: how often an attack whose worker died is tried again, from where it last saved.
        lazy: start workers with the first observation instead of at once. On a cluster that others use too, nobody
            then holds room for attacks while waiting for room for clients.
        place: Ray's scheduling strategy for the worker of this number, counted over all crews.

    Attributes:
        on_waiting: told, now and then, that attacks wait for workers that nothing has room for.
    """

    def __init__(
        self,
        attacks: dict[str, dict[str, Any]],
        seed: int,
        on_result: OnResult,
        *,
        crew: Crew | None = None,
        crews: Mapping[str, Crew] | None = None,
        backlog: int = 256,
        max_retries: int = 2,
        scratch: Path | None = None,
        lazy: bool = False,
        place: Callable[[int], Any] = anywhere,
    ) -> None:
        super().__init__(attacks, seed, on_result, scratch)
        self.on_waiting: Callable[[str], None] = logger.warning
        own = crews or {}
        self._crew_of = {name: own.get(name, crew or Crew()) for name in attacks}
        self._built = {name: build_attack(name, settings) for name, settings in attacks.items()}
        self._max_retries, self._place = max_retries, place
        self._pools: dict[Crew, ActorPool[_Queued]] = {}
        for chosen in self._crew_of.values():
            if chosen not in self._pools:
                self._pools[chosen] = self._pool(chosen, sum(other.workers for other in self._pools))
        self._last_shared: tuple[State, Any] | None = None
        self._unfinished: dict[str, Unfinished] = {}
        self._left: Counter[str] = Counter()
        self._backlog, self._lazy = backlog, lazy
        self._helpless_since: float | None = None
        self._back = 0.0
        self._staff()

    @property
    def pending(self) -> int:
        return sum(pool.pending for pool in self._pools.values())

    def backlog(self) -> dict[str, int]:
        pools = self._pools.values()
        waiting, running = sum(pool.waiting for pool in pools), sum(pool.running for pool in pools)
        return {"attacks_waiting": waiting, "attacks_running": running}

    def help(self, free: int) -> None:
        """At most so many more workers, where attacks wait: for when the clients have left their room."""
        for pool in self._pools.values():
            more = min(free, (pool.pending - pool.size) // 2)
            if more > 0:
                pool.add(more)
                free -= more

    def give_way(self) -> None:
        """Stop all workers, since clients have none at all: what they were at begins again once clients have theirs.

        Whoever waits calls this again sooner than that: where nobody has for longer, there is room again.
        """
        self._lazy = True
        self._back = time.monotonic() + 1.5 * PATIENCE
        for pool in self._pools.values():
            pool.release()

    def _queue(
        self, observation: Observation, truth: GroundTruth | None, names: list[str], earlier: Sequence[Observation]
    ) -> None:
        shared = self._put_shared(_shared_of(observation))
        light, past = ray.put(_light(observation)), ray.put(list(earlier))
        load = partial(_fetch, light, shared)
        self._unfinished[observation.name] = Unfinished(observation.name, observation.server_round, truth, load)
        self._left[observation.name] += len(names)
        for name in names:
            pool, attack = self._pools[self._crew_of[name]], self._built[name]
            lost = AttackResult.of(observation, name, "failed", target=attack.recovers, baseline=attack.baseline)
            read = past if reads_history(self.attacks[name]) else []
            pool.submit(_Queued(lost, truth), self._call(name, truth, light, shared, read), float(attack.cost))
        self.collect()
        while self.pending > self._backlog and self._may_wait():
            self._take(1.0)

    def unfinished(self) -> list[Unfinished]:
        return list(self._unfinished.values())

    def collect(self) -> None:
        self._staff()
        self._take(0.0)

    def drain(self, on_progress: Callable[[], None] = lambda: None) -> None:
        self._back = 0.0  # the clients have gone
        self._staff()
        while self.pending:
            self._take(0.5)
            on_progress()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _pool(self, crew: Crew, first: int) -> ActorPool[_Queued]:
        actor = ray.remote(AttackWorker)

        def start(number: int) -> Any:
            options = crew.request.options() | {"scheduling_strategy": self._place(first + number)}
            return actor.options(**options).remote(crew.threads, crew.request.gpus, self.scratch)

        def tell(seconds: float) -> None:
            self.on_waiting(f"no attack worker has started for {seconds:.0f} s: {describe_room(crew.request)}")

        return ActorPool(start, 0, self._max_retries, tell, breaks_process)

    def _staff(self) -> None:
        """Workers for pools that have none, unless clients have just asked for the room."""
        if time.monotonic() < self._back:
            return
        for crew, pool in self._pools.items():
            if pool.size == 0 and (pool.pending or not self._lazy):
                pool.add(crew.workers)

    def _any_started(self) -> bool:
        return any(pool.started for pool in self._pools.values() if pool.pending)

    def _may_wait(self) -> bool:
        """Whether the queue may yet get shorter. Without workers it is waited for once, not for each observation."""
        if self._any_started():
            return True
        if self._helpless_since is None:
            self._helpless_since = time.monotonic()
        return time.monotonic() - self._helpless_since < PATIENCE

    def _call(
        self, name: str, truth: GroundTruth | None, observation: Any, shared: Any, earlier: Any
    ) -> Callable[[Any], Any]:
        settings = self.attacks[name]

        def call(worker: Any) -> Any:
            result = worker.attack.remote(observation, [shared], name, settings, self.seed, earlier)
            return worker.score.remote(result, truth)

        return call

    def _put_shared(self, shared: State) -> Any:
        """One object in Ray's store for all observations of a round."""
        if self._last_shared is None or not _same_tensors(self._last_shared[0], shared):
            arrays: dict[str, np.ndarray[Any, Any]] = {n: t.detach().cpu().numpy() for n, t in shared.items()}
            self._last_shared = (shared, ray.put(arrays))
        return self._last_shared[1]

    def _take(self, seconds: float) -> None:
        ended = wait_for(list(self._pools.values()), seconds)
        for crew, pool in self._pools.items():
            ended += pool.expire(crew.timeout)
        for end in ended:
            self._end(end)
        if self._any_started() or not self.pending:
            self._helpless_since = None

    def _end(self, end: Finished[_Queued]) -> None:
        stopped = replace(end.tag.lost, reason=end.error or "", seconds=end.seconds)
        result, name = end.value or stopped, stopped.observation
        if result.fault:  # the worker's own log is not the run's
            logger.error("attack %s failed on %s:\n%s", result.attack, name, result.fault)
        self._finish(replace(result, attempts=end.attempts), end.tag.truth, stopped=end.value is None)
        self._left[name] -= 1
        if self._left[name] == 0:
            del self._unfinished[name], self._left[name]
