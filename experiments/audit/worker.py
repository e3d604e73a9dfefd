"""One worker of an audit: computes shared updates, attacks them and scores the results, all in one place."""

import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.building import build_attack
from attacks.running import attack_device, run_attack_on_many
from experiments.engine.audited import AuditedClients
from experiments.engine.setup import Setup, prepare
from fedsim.determinism import torch_threads
from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.metrics.results import score_against
from fedsim.observation import Observation, observation_name
from fedsim.result import AttackResult
from fedsim.settings.commands import AuditConfig
from fedsim.settings.schema import parse
from fedsim.simulation.actor_pool import PooledWorker
from fedsim.wire.reply.values import MalformedReply

UNCOMPUTED = "the update could not be computed: "
"""How the reason of a result begins where there was nothing to attack."""

INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})
"""Folders of the standard library and of installed packages."""


@dataclass(frozen=True)
class AuditBatch:
    """One update to audit, or under secure aggregation the sum of several.

    Attributes:
        positions: of its pictures in the set, `audit.batch_size` to a client.
        attacks: those still to run.
        first_client: number of the first client in it; the others follow.
    """

    number: int
    positions: tuple[int, ...]
    attacks: tuple[str, ...]
    first_client: int


class Group(tuple[AuditBatch, ...]):
    """Updates that one worker attacks together; by the names that their results have."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(observation_name(0, batch.number) for batch in self)

    def by_attack(self) -> Iterator["Group"]:
        """One for each attack, of the updates that it is still to run on."""
        for name in dict.fromkeys(name for batch in self for name in batch.attacks):
            yield Group(replace(batch, attacks=(name,)) for batch in self if name in batch.attacks)


@dataclass(frozen=True)
class AuditedAttack:
    """What an attack made of one update, and the truth about it.

    Attributes:
        malformed: a federation's server would have rejected the update, so that no attack was run on it.
        uncomputed: it raised before there was an update to attack.
    """

    result: AttackResult
    truth: GroundTruth
    malformed: bool = False
    uncomputed: bool = False


@dataclass(frozen=True)
class Uncomputed:
    """Why there is no update to attack, and the traceback."""

    reason: str
    fault: str


class AuditWorker(PooledWorker):
    """Keeps data, model and defenses between updates, and the updates of the last call.

    Args:
        auxiliary_probs: p̂ of the label rules, computed once for all workers.
        scratch: where unfinished attacks keep their state.
        setup: what this process has built already; None builds it on first use.
        attacked: digests of the audit's images, copies of which the server does not have, where there is no `setup`.
    """

    def __init__(
        self,
        config: AuditConfig | Mapping[str, Any],
        num_gpus: float = 0.0,
        auxiliary_probs: Tensor | None = None,
        scratch: Path | None = None,
        *,
        setup: Setup | None = None,
        attacked: frozenset[str] = frozenset(),
    ) -> None:
        self._config = parse(AuditConfig, config)
        self._device = attack_device(num_gpus)
        self._auxiliary_probs = auxiliary_probs
        self._scratch = scratch
        self._given = setup
        self._attacked = attacked
        self._seen: dict[int, tuple[Observation, GroundTruth] | Uncomputed] = {}

    def ready(self) -> None:
        """Builds what it keeps, so that no time limit includes that."""
        with self._own_threads(), suppress(Exception):  # what a node lacks `run` says, of the updates that it gets
            _ = self._clients

    @cached_property
    def _setup(self) -> Setup:
        return self._given or replace(prepare(self._config, worker=True), attacked=self._attacked)

    @cached_property
    def _clients(self) -> AuditedClients:
        return AuditedClients(self._setup)

    def run(self, batches: Sequence[AuditBatch]) -> list[AuditedAttack]:
        """The attacks on these updates; every result is independent of which worker computed it, and beside which.

        Of a malformed update alone, where there is one.
        """
        with self._own_threads():
            return self._run(batches)

    def _own_threads(self) -> AbstractContextManager[None]:
        return torch_threads(self._config.simulation.threads)

    def _run(self, batches: Sequence[AuditBatch]) -> list[AuditedAttack]:
        at_hand = {batch.number for batch in batches}
        self._seen = {number: seen for number, seen in self._seen.items() if number in at_hand}
        observed: dict[int, tuple[Observation, GroundTruth]] = {}
        results: dict[tuple[int, str], AuditedAttack] = {}
        for batch in batches:
            try:
                seen = self._seen.get(batch.number) or self._observe(batch)
            except MalformedReply as fault:
                none = failed(batch, self._setup, f"malformed update: {fault}")
                return [replace(one, malformed=True) for one in none]
            except Exception as error:  # noqa: BLE001 - defenses are plug-ins: their faults are results too
                seen = Uncomputed(UNCOMPUTED + where(error), traceback.format_exc())
            self._seen[batch.number] = seen
            if isinstance(seen, Uncomputed):
                for lost in failed(batch, self._setup, seen.reason, fault=seen.fault):
                    results[batch.number, lost.result.attack] = replace(lost, uncomputed=True)
            else:
                observed[batch.number] = seen
        for name, settings in self._config.attack.items():
            numbers = [batch.number for batch in batches if name in batch.attacks and batch.number in observed]
            observations = [observed[number][0] for number in numbers]
            given = self._setup.own_attacks.get(name)
            seed, device, scratch = self._config.seed, self._device, self._scratch
            ends = run_attack_on_many(observations, name, settings, seed, device, scratch, given)
            for number, result in zip(numbers, ends, strict=True):
                truth = observed[number][1]
                results[number, name] = AuditedAttack(score_against(result, truth), truth)
        return [results[batch.number, name] for batch in batches for name in batch.attacks]

    def _observe(self, batch: AuditBatch) -> tuple[Observation, GroundTruth]:
        size, held = self._config.audit.batch_size, self._setup.data.train
        starts = range(0, len(batch.positions), size)
        images = [held.subset(batch.positions[start : start + size]) for start in starts]
        return self._clients.observe(images, batch.first_client, batch.number, self._auxiliary_probs)


def where(error: Exception) -> str:
    """The error, and the last line that is neither Python's nor an installed package's; a refused setting has none."""
    if isinstance(error, ConfigError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*INSTALLED, "<"))] or frames
    return f"{type(error).__name__}: {error} in {own[-1].filename}:{own[-1].lineno}"


def failed(batch: AuditBatch, setup: Setup, reason: str, seconds: float = 0.0, fault: str = "") -> list[AuditedAttack]:
    """An update that no worker could compute: named in the table, and the audit goes on.

    Args:
        seconds: that went into each attack on it.
        fault: the traceback, where there is one.
    """
    pictures = setup.data.train.subset(batch.positions)
    nothing_seen = GroundTruth(torch.empty(0), pictures.labels, pictures.ids)
    lost = []
    for name in batch.attacks:
        attack = setup.own_attacks.get(name) or build_attack(name, setup.config.attack[name])
        named, whose = observation_name(0, batch.number), (0, batch.number, len(pictures))
        result = AttackResult(named, name, "failed", reason, *whose, seconds=seconds, fault=fault)
        result = replace(result, target=attack.recovers, baseline=attack.baseline)
        lost.append(AuditedAttack(result, nothing_seen))
    return lost
