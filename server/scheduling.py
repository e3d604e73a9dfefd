"""Attacks beside the training: queued, retried, timed out, never in its way."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation
from fedsim.update import State
from server.attacking import Outcome, Scores, attack_device, run_attack, score_outcome
from server.results import Job

logger = getLogger(__name__)

OnResult = Callable[[Job, Outcome, Scores | None, GroundTruth | None, int], None]


@dataclass
class _Queued:
    job: Job
    observation: Any
    state: Any
    truth: GroundTruth | None
    attempts: int = 0


class AttackScheduler(ABC):
    """Runs every configured attack on every observation submitted.

    Args:
        attacks: `cfg.attack`: settings by name.
        on_result: called in the server's process with each result.
    """

    def __init__(self, attacks: dict[str, dict[str, Any]], seed: int, on_result: OnResult) -> None:
        self.attacks = attacks
        self.seed = seed
        self.on_result = on_result
        self.submitted = 0
        self.finished = 0

    @abstractmethod
    def submit(self, observation: Observation, truth: GroundTruth | None, skip: frozenset[str] = frozenset()) -> None:
        """Queue all attacks on this observation, less those named in `skip`."""

    @abstractmethod
    def collect(self) -> None:
        """Take what has finished, without waiting."""

    @abstractmethod
    def drain(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Wait for everything that was submitted."""

    def close(self) -> None:
        """Release the workers."""

    def _jobs(self, observation: Observation, skip: frozenset[str]) -> list[Job]:
        size = observation.protocol.batch_size
        names = [name for name in self.attacks if name not in skip]
        self.submitted += len(names)
        return [Job(observation.server_round, observation.client, name, size) for name in names]

    def _finish(self, job: Job, outcome: Outcome, scores: Scores | None, truth: GroundTruth | None, tries: int) -> None:
        self.finished += 1
        self.on_result(job, outcome, scores, truth, tries)


class InlineAttacks(AttackScheduler):
    """Attacks at once, in the process: for `simulation=inline`."""

    def submit(self, observation: Observation, truth: GroundTruth | None, skip: frozenset[str] = frozenset()) -> None:
        for job in self._jobs(observation, skip):
            outcome = run_attack(observation, job.attack, self.attacks[job.attack], self.seed, torch.device("cpu"))
            self._finish(job, outcome, score_outcome(outcome, truth), truth, 1)

    def collect(self) -> None:
        """Nothing is ever under way."""

    def drain(self, on_progress: Callable[[], None] = lambda: None) -> None:
        on_progress()


class AttackWorker:
    """Runs in an actor; keeps the last global state it was given."""

    def __init__(self, threads: int, num_gpus: float) -> None:
        torch.set_num_threads(threads)
        self._device = attack_device(num_gpus)
        self._state_id = ""
        self._state: State = {}

    def attack(
        self, observation: Observation, state: list[Any], name: str, settings: dict[str, Any], seed: int
    ) -> Outcome:
        (reference,) = state
        if reference.hex() != self._state_id:
            # Copied: Ray's arrays are read-only views, and an attack may write into its observation.
            self._state = {key: torch.from_numpy(array.copy()) for key, array in ray.get(reference).items()}
            self._state_id = reference.hex()
        return run_attack(replace(observation, global_state=self._state), name, settings, seed, self._device)

    def score(self, outcome: Outcome, truth: GroundTruth | None) -> tuple[Outcome, Scores | None]:
        """A call of its own: nothing that runs during the attack has the truth."""
        return outcome, score_outcome(outcome, truth)


class RayAttacks(AttackScheduler):
    """A pool of Ray actors works through a bounded queue.

    Args:
        workers: how many attacks run at once.
        num_cpus, num_gpus: Ray's admission request of one worker.
        threads: torch threads of a worker.
        backlog: queued attacks beyond which `submit` waits, so that memory stays bounded.
        timeout: seconds for one attack, after which its worker is killed and it counts as failed.
        max_retries: how often an attack whose worker died is tried again.
    """

    def __init__(
        self,
        attacks: dict[str, dict[str, Any]],
        seed: int,
        on_result: OnResult,
        *,
        workers: int = 1,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        threads: int = 1,
        backlog: int = 256,
        timeout: float = 3600.0,
        max_retries: int = 2,
    ) -> None:
        super().__init__(attacks, seed, on_result)
        self._make_worker = (
            ray.remote(AttackWorker).options(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=-1).remote
        )
        self._worker_arguments = (threads, num_gpus)
        self._workers: list[Any] = []
        self._idle: deque[Any] = deque()
        self._queue: deque[_Queued] = deque()
        self._running: dict[Any, tuple[Any, _Queued, float]] = {}
        self._last_state: tuple[State, Any] | None = None
        self._backlog, self._timeout, self._max_retries = backlog, timeout, max_retries
        self.add_workers(workers if attacks else 0)

    @property
    def pending(self) -> int:
        return len(self._queue) + len(self._running)

    def add_workers(self, count: int) -> None:
        """More workers: for when the clients have left theirs."""
        for _ in range(count):
            worker = self._make_worker(*self._worker_arguments)
            self._workers.append(worker)
            self._idle.append(worker)

    def submit(self, observation: Observation, truth: GroundTruth | None, skip: frozenset[str] = frozenset()) -> None:
        jobs = self._jobs(observation, skip)
        if not jobs:
            return
        state = self._put_state(observation.global_state)
        light = ray.put(replace(observation, global_state={}))
        self._queue.extend(_Queued(job, light, state, truth) for job in jobs)
        self.collect()
        while self.pending > self._backlog:
            self._wait(1.0)

    def collect(self) -> None:
        self._start()
        self._wait(0.0)

    def drain(self, on_progress: Callable[[], None] = lambda: None) -> None:
        self._start()
        while self.pending:
            self._wait(0.5)
            on_progress()

    def close(self) -> None:
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []
        self._idle.clear()

    def _put_state(self, state: State) -> Any:
        """One object in Ray's store for all observations of a round."""
        if self._last_state is None or self._last_state[0] is not state:
            arrays: dict[str, np.ndarray[Any, Any]] = {n: t.detach().cpu().numpy() for n, t in state.items()}
            self._last_state = (state, ray.put(arrays))
        return self._last_state[1]

    def _start(self) -> None:
        while self._idle and self._queue:
            worker, queued = self._idle.popleft(), self._queue.popleft()
            queued.attempts += 1
            job = queued.job
            settings = self.attacks[job.attack]
            outcome = worker.attack.remote(queued.observation, [queued.state], job.attack, settings, self.seed)
            result = worker.score.remote(outcome, queued.truth)
            self._running[result] = (worker, queued, time.monotonic())

    def _wait(self, seconds: float) -> None:
        if not self._running:
            return
        ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0.0)
        if not ready and seconds > 0:
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        for result in ready:
            worker, queued, _ = self._running.pop(result)
            self._idle.append(worker)
            self._take(result, queued)
        self._stop_late()
        self._start()

    def _take(self, result: Any, queued: _Queued) -> None:
        try:
            outcome, scores = ray.get(result, timeout=60.0)
        except RayActorError:
            logger.warning("the worker of %s on %s died", queued.job.attack, queued.job.observation)
            if queued.attempts <= self._max_retries:
                self._queue.appendleft(queued)
                return
            outcome, scores = Outcome("failed", f"its worker died {queued.attempts} times"), None
        except (RayTaskError, GetTimeoutError) as error:
            first_line = str(error).strip().splitlines()[-1]
            outcome, scores = Outcome("failed", first_line), None
        self._finish(queued.job, outcome, scores, queued.truth, queued.attempts)

    def _stop_late(self) -> None:
        now = time.monotonic()
        for result, (worker, queued, since) in list(self._running.items()):
            if now - since > self._timeout:
                del self._running[result]
                ray.kill(worker, no_restart=False)
                self._idle.append(worker)
                outcome = Outcome("failed", f"no result within {self._timeout:g} s", seconds=now - since)
                self._finish(queued.job, outcome, None, queued.truth, queued.attempts)
