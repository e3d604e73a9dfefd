"""One worker of an audit: computes a shared update, attacks it and scores the result, all in one place."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clients.app import ClientRuntime
from experiments.setup import Setup, prepare
from fedsim.composition import Config
from fedsim.ground_truth import GroundTruth
from fedsim.update import State
from server.attacking import Outcome, Scores, attack_device, run_attack, score_outcome
from server.results import Job


@dataclass(frozen=True)
class AuditBatch:
    """One update to audit: its number, its pictures' positions in the set, the attacks still to run."""

    number: int
    positions: tuple[int, ...]
    attacks: tuple[str, ...]


@dataclass(frozen=True)
class AuditResult:
    """What an attack made of one update."""

    job: Job
    outcome: Outcome
    scores: Scores | None
    truth: GroundTruth


class AuditWorker:
    """Keeps data, model and defenses between updates.

    Args:
        setup: what this process has built already; None builds it on first use.
        auxiliary_probs: p̂ of the label rules, computed once for all workers.
    """

    def __init__(
        self,
        config: Config,
        num_gpus: float = 0.0,
        auxiliary_probs: Tensor | None = None,
        setup: Setup | None = None,
    ) -> None:
        self._config = config
        self._device = attack_device(num_gpus)
        self._auxiliary_probs = auxiliary_probs
        self._given = setup

    @cached_property
    def _setup(self) -> Setup:
        return self._given or prepare(self._config)

    @cached_property
    def _runtime(self) -> ClientRuntime:
        return ClientRuntime(self._config, self._setup.data)

    @cached_property
    def _state(self) -> State:
        return {name: tensor.detach().clone() for name, tensor in self._setup.model.state_dict().items()}

    def run(self, batch: AuditBatch) -> list[AuditResult]:
        """All attacks on one update; every result is independent of which worker computed it."""
        torch.set_num_threads(self._config["simulation"]["threads"])
        pictures = self._setup.data.train.subset(batch.positions)
        runtime = self._runtime
        runtime.load(self._state)
        result = runtime.train(pictures, batch.number, server_round=0, audit=True)
        update = runtime.share(result, self._state, len(pictures), batch.number, server_round=0)
        assert result.truth is not None
        observation = self._setup.factory().make(
            0, batch.number, self._state, update, result.protocol, self._auxiliary_probs
        )
        results = []
        for name in batch.attacks:
            job = Job(0, batch.number, name, result.protocol.batch_size)
            settings, seed = self._config["attack"][name], self._config["seed"]
            outcome = run_attack(observation, name, settings, seed, self._device)
            results.append(AuditResult(job, *score_outcome(outcome, result.truth), result.truth))
        return results
