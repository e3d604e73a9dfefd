"""Gradient descent: all candidates of all victims at once, or one after another for L-BFGS."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

import torch

from attacks.optimization.matching.derivative import METHODS, MixedDerivative
from attacks.optimization.problem import clips_examples
from attacks.optimization.search.base import DIFFERENCES, BestCandidate, NotFiniteError, Search, SearchTask
from attacks.optimization.search.group import GroupConsistency
from attacks.optimization.search.memory import candidate_bytes, chunk_size, default_budget
from attacks.optimization.search.optimisers import OptimiserSettings
from attacks.optimization.search.schedule import Schedule, check_piecewise
from attacks.optimization.search.search import SearchState
from attacks.victim import set_fused_attention
from fedsim.errors import one_of, require

logger = getLogger(__name__)


@dataclass(frozen=True)
class Descent(Search):
    """How candidates move, by derivatives.

    Attributes:
        steps: of each candidate (L-BFGS: outer steps).
        restarts: candidates of each victim; the one of least objective is the result.
        derivative: how ∂x D is computed: `double_backward`, `finite_difference`, `central_difference`, or `auto`:
            exact for L-BFGS, several local steps, float64 and models without attention; else finite differences.
        difference_step: ‖εv‖ of finite differences.
        matching_weight: factor on D, a number or [[0, number], [fraction of the run, number], …].
        group: GradInversion's group consistency, or None.
        patience: steps without progress after which a candidate stops, None for never.
    """

    optimiser: OptimiserSettings | None = None
    schedule: Schedule | None = None
    steps: int = 1000
    restarts: int = 1
    derivative: str = "auto"
    difference_step: float = 1e-2
    matching_weight: Any = 1.0
    group: GroupConsistency | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        require("steps", self.steps, self.steps >= 1, "1 or more")
        require("restarts", self.restarts, self.restarts >= 1, "1 or more")
        one_of("derivative", self.derivative, METHODS)
        require("difference_step", self.difference_step, self.difference_step > 0, "a positive number")
        require("patience", self.patience, self.patience is None or self.patience >= 1, "a number of steps, or null")
        lasts = self.patience is None or self.group is None or self.patience < self.group.every
        require("patience", self.patience, lasts, "less than group.every: each new mean begins it anew")
        require("group", self.group, self.group is None or self.restarts > 1, "null, or restarts of 2 or more")
        check_piecewise("matching_weight", self.matching_weight)
        if not self.moves.elementwise:
            require("group", self.group, self.group is None, "null for L-BFGS, whose candidates do not see one another")

    @property
    def moves(self) -> OptimiserSettings:
        """The optimiser, Adam by default."""
        return self.optimiser or OptimiserSettings()

    @property
    def cost(self) -> float:
        """How long it takes, in steps of one candidate."""
        steps = self.steps * self.restarts
        return float(steps if self.moves.elementwise else steps * self.moves.inner)

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]
        return not self.moves.elementwise  # L-BFGS chooses its step from all that it is given

    @property
    def comparing(self) -> bool:  # type: ignore[override]
        return self.group is not None

    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        together = 1 if self.one_by_one else len(task.problems) * self.restarts
        derivative, method = task.derivative(self.derivative, self.difference_step, together, exact=self.one_by_one)
        problems = task.ordered(derivative)
        generators = [
            torch.Generator().manual_seed(int(seed))
            for rng in rngs
            for seed in torch.randint(2**62, (self.restarts,), generator=rng)
        ]
        surrogate = task.local == "surrogate"
        if not self.one_by_one:
            search = SearchState(problems, derivative, self, task.budget, generators, task.device, surrogate)
            search.chunk = _chunk(search, derivative, method, task)
            if search.chunk == 1 and method in DIFFERENCES:
                set_fused_attention(derivative.update.victim.model, True)
            return search.run(task.session)
        task.report(1)
        one = replace(self, restarts=1)
        found: list[BestCandidate] = []
        for index, generator in enumerate(generators):
            search = SearchState(problems, derivative, one, task.budget, [generator], task.device, surrogate)
            try:
                found += search.run(task.session.part(f"restart-{index}"))
            except NotFiniteError as error:
                logger.warning("restart %d: %s", index, error)
        if not found:
            raise NotFiniteError("the objective was not finite in any restart")
        return [min(found, key=lambda one: one.values["objective"])]


def _chunk(search: SearchState, derivative: MixedDerivative, method: str, task: SearchTask) -> int:
    """How many candidates the budget has room for at once."""
    chunk = 1
    if search.count > 1:
        one = {name: variable[0].detach() for name, variable in search.variables.items() if name != "point"}
        one["images"] = search.images()[0].detach()
        observation = search.problems[0].observation
        steps = 1 if derivative.update.plain else observation.protocol.steps
        singly = min(len(one["images"]), observation.protocol.batch_size) if clips_examples(observation) else 1
        room = task.budget.memory_gib or default_budget(task.device)
        chunk = chunk_size(search.count, candidate_bytes(derivative, method, one, steps, singly), room)
    task.report(chunk)
    return chunk
