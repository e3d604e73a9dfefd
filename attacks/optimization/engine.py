"""Gradient matching: x* = argmin D(u(x), u') + Σ α_i R_i(x). The published attacks are settings of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attacks.base import Attack, Certificate, Needs, Reconstruction
from attacks.optimization.matching.objectives import Cosine, Objective
from attacks.optimization.parametrisation import Parametrisation, Pixels
from attacks.optimization.problem import (
    Problem,
    blind,
    check_labels,
    known_labels,
    local_updates,
    make_problem,
    random_target,
    shared_update,
)
from attacks.optimization.search.base import BestCandidate, Search, SearchTask
from attacks.optimization.search.descent import Descent
from attacks.optimization.search.memory import default_budget
from attacks.optimization.settings import Budget, Matching
from attacks.positions import masked_rows, of_images
from attacks.session import Session
from fedsim.errors import NotApplicable
from fedsim.observation import Observation
from fedsim.settings.grouped import grouped


class GradientMatching(Attack):
    """Search for the images whose update is the one that was shared.

    The settings of the first three may be given side by side, as the files of `conf/attack` have them:
    `GradientMatching(steps=100, frames=0)`.

    Args:
        problem: what is minimised.
        search: how candidates move.
        budget: how it is run.
        parametrisation: what is varied; None: pixels.
    """

    needs = Needs(auxiliary=True)
    joint = True
    """Whether labels can be searched for with the images."""
    _together = 2
    """Candidates that were computed together when it was last tried, while there is hope for fewer."""

    @grouped
    def __init__(
        self,
        problem: Matching | None = None,
        search: Descent | Search | None = None,
        budget: Budget | None = None,
        parametrisation: Parametrisation | None = None,
    ) -> None:
        self.problem = problem or Matching()
        self.search: Search = search or Descent()
        self.budget = budget or Budget()
        self.parametrisation = parametrisation or Pixels()
        self.baseline = self.problem.target == "random"
        self.learned_from = self.parametrisation.learned_from

    @property
    def objective(self) -> Objective:
        """The distance of updates, the cosine's by default."""
        return self.problem.objective or Cosine()

    @property
    def cost(self) -> float:  # type: ignore[override]
        return self.search.cost

    def shrink(self, device: torch.device) -> str:
        """Fewer candidates together; nothing where there was only one."""
        if self._together < 2:
            return ""
        self.budget = replace(self.budget, memory_gib=(self.budget.memory_gib or default_budget(device)) / 2)
        return f"memory_gib={self.budget.memory_gib:g}"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.parametrisation.class_names

    def check_image_shape(self, image_shape: tuple[int, ...]) -> None:
        self.parametrisation.check_image_shape(image_shape)

    def check_stated(self, observation: Observation) -> None:
        if not isinstance(self.problem.labels, str):
            check_labels(self.problem.labels, observation)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable where a label rule, a prior or the update's kind does not allow it."""
        result = self.run_many([observation], [rng], device)[0]
        if isinstance(result, NotApplicable):
            raise NotApplicable(str(result))
        return result

    def run_many(
        self, observations: Sequence[Observation], rngs: Sequence[torch.Generator], device: torch.device
    ) -> list[Reconstruction | NotApplicable]:
        """All victims that one model can serve together; each result is that of the victim alone, up to rounding.

        Signed steps amplify rounding: in float32 pictures then agree in likeness rather than in bits.
        """
        outcomes: list[Reconstruction | NotApplicable | None] = [None] * len(observations)
        for number, group in enumerate(_alike(observations)):
            ready: list[int] = []
            problems: list[Problem] = []
            for index in group:
                try:
                    problems.append(self._problem(observations[index], rngs[index], device))
                    ready.append(index)
                except NotApplicable as refusal:
                    outcomes[index] = NotApplicable(str(refusal))  # its traceback would keep what its frames held
            one_by_one = self.search.one_by_one or self._local(problems) == "surrogate"
            batches = [[index] for index in range(len(ready))] if one_by_one else _of_a_shape(problems)
            for part, batch in enumerate(batches):
                chosen = [problems[index] for index in batch]
                name = f"{number}-{part}" if len(batch) == 1 else f"{number}-{part}-of-{len(batch)}"
                session = self.session.part(name) if len(observations) > 1 else self.session
                try:
                    task, own = self._task(chosen, device, session), [rngs[ready[index]] for index in batch]
                    results = self.search.run(task, own)
                except NotApplicable as refusal:
                    if len(batch) > 1:  # of whom it is only one by one can tell
                        raise
                    outcomes[ready[batch[0]]] = NotApplicable(str(refusal))
                    continue
                for index, result in zip(batch, results, strict=True):
                    outcomes[ready[index]] = self._reconstruction(problems[index], result)
        return [outcome for outcome in outcomes if outcome is not None]

    def _problem(
        self, observation: Observation, rng: torch.Generator, device: torch.device, labels: Tensor | None = None
    ) -> Problem:
        """`labels`: known already."""
        self.check(observation)
        self.objective.prepare(observation)
        stated = labels is not None or not isinstance(self.problem.labels, str)
        if labels is None:
            labels = known_labels(self.problem.labels, observation, rng, self.joint)
        labels = None if labels is None else labels.to(device)
        shared = shared_update(observation, local_updates(self.problem.local_updates, observation), device)
        target = of_images(observation, shared)
        if self.problem.target == "observed":
            problem = make_problem(observation, target, labels, self.parametrisation, self.problem.terms, device)
        else:
            noise, target = blind(observation, rng), random_target(target, rng)
            problem = make_problem(
                noise, target, labels, self.parametrisation, self.problem.terms, device, blind_of=observation
            )
        batches = local_updates(self.problem.local_updates, observation) == "unroll"
        batches = batches and observation.protocol.batch_size < problem.count
        # A group compares pictures place by place, and so does a generator that is asked for classes.
        free = labels is not None and not self.search.comparing and problem.space.labels is None
        return replace(problem, ordered=not (batches and free), stated=stated)

    def _task(self, problems: Sequence[Problem], device: torch.device, session: Session) -> SearchTask:
        def report(candidates: int) -> None:
            self._together = candidates

        return SearchTask(problems, self.objective, self._local(problems), self.budget, device, session, report)

    def _reconstruction(self, problem: Problem, found: BestCandidate) -> Reconstruction:
        labels = found.labels.argmax(dim=-1) if found.labels.is_floating_point() else found.labels
        reason = "a search: a low objective can belong to another picture"
        return Reconstruction(
            images=problem.observation.to_unit_range(found.images).clamp(0.0, 1.0),
            labels=labels,
            certificate=Certificate("none", reason, found.values),
            trace=tuple(found.trace),
            frames=tuple(found.frames),
            labels_given=not isinstance(self.problem.labels, str),
        )

    def _local(self, problems: Sequence[Problem]) -> str:
        return local_updates(self.problem.local_updates, problems[0].observation) if problems else "gradient"


def _of_a_shape(problems: Sequence[Problem]) -> list[list[int]]:
    """Indices of problems whose points have one shape: how many directions are open may depend on the update."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, problem in enumerate(problems):
        groups.setdefault(tuple(problem.space.initial(torch.Generator().manual_seed(0)).shape), []).append(index)
    return list(groups.values())


def _alike(observations: Sequence[Observation]) -> list[list[int]]:
    """Indices of observations that one model with one state serves, in order."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, observation in enumerate(observations):
        update = observation.update
        key = (
            tuple((name, id(tensor)) for name, tensor in sorted(observation.global_state.items())),
            observation.protocol,
            update.kind,
            tuple(sorted(update.tensors)),
            repr(observation.defenses),
            observation.image_shape,
            observation.num_images,
            None if (masked := masked_rows(observation)) is None else tuple(masked.tolist()),
        )
        groups.setdefault(key, []).append(index)
    return list(groups.values())
