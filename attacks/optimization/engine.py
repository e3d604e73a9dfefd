"""Gradient matching: x* = argmin D(u(x), u') + Σ α_i R_i(x). The published attacks are settings of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

import torch

from attacks.analytic.patch_gradient import examples_behind
from attacks.base import Attack, Certificate, Needs, Reconstruction
from attacks.label.recover import RULES
from attacks.optimization.matching.derivative import METHODS, MixedDerivative, make_derivative
from attacks.optimization.matching.objectives import Cosine, Objective
from attacks.optimization.matching.victim import make_victim, set_fused_attention
from attacks.optimization.parametrisation import Parametrisation, Pixels
from attacks.optimization.priors.base import Prior
from attacks.optimization.problem import (
    LOCAL_UPDATES,
    Problem,
    blind,
    known_labels,
    local_updates,
    make_problem,
    make_update_map,
    random_target,
    shared_update,
    with_clip,
)
from attacks.optimization.search.group import GroupConsistency
from attacks.optimization.search.memory import candidate_bytes, chunk_size, default_budget
from attacks.optimization.search.optimisers import OptimiserSettings
from attacks.optimization.search.schedule import Schedule, check_piecewise
from attacks.optimization.search.search import BestCandidate, NotFiniteError, SearchSettings, SearchState
from attacks.positions import masked_rows, of_images
from attacks.session import Session
from fedsim.errors import ConfigError, NotApplicable
from fedsim.observation import Observation
from fedsim.update import State

logger = getLogger(__name__)

DIFFERENCES = ("finite_difference", "central_difference")


class GradientMatching(Attack):
    """Search for the pictures whose update is the one that was shared.

    Args:
        objective: the distance D of updates.
        parametrisation: what is varied.
        priors: the terms R_i by name, each with its weight; None drops one.
        optimiser, schedule: how candidates move.
        steps: steps of each candidate (L-BFGS: outer steps).
        restarts: candidates of each victim; the one of least objective is the result.
        labels: a rule of `RecoverLabels`, or `joint`: soft labels searched for together with the pictures.
        derivative: how ∂x D is computed: `double_backward`, `finite_difference`, `central_difference`, `compiled`, or
            `auto`: exact for L-BFGS, several local steps, float64 and models without attention; else
            finite differences.
        difference_step: ‖εv‖ of finite differences.
        local_updates: `gradient` (a weight change is its scaled gradient), `unroll` (simulate the local steps),
            `surrogate` (the gradient between the weights sent and returned), or `auto`: gradient for one step,
            unroll for several.
        matching_weight: factor on D, a number or [[0, number], [fraction of the run, number], …].
        group: GradInversion's group consistency, or None.
        patience: steps without progress after which a candidate stops, None for never.
        memory_gib: memory for candidates that are computed together; None: half of a GPU's, 4 on a CPU.
        frames: pictures kept of the way.
        save_every: steps after which an interrupted attack can go on; 0 saves nothing.
        target: `observed`, or `random`, the baseline: noise of the same norms in place of what was shared, for the
            distance, the search space, the priors and the model's mask. Its labels are given: those that the rule
            reads off the true update. A prior that finds nothing in noise is left out.
    """

    needs = Needs(auxiliary=True)
    _chunked = 2
    """Candidates that were computed together when it was last tried, while there is hope for fewer."""

    def __init__(
        self,
        objective: Objective | None = None,
        parametrisation: Parametrisation | None = None,
        priors: Mapping[str, Prior | None] | None = None,
        optimiser: OptimiserSettings | None = None,
        schedule: Schedule | None = None,
        steps: int = 1000,
        restarts: int = 1,
        labels: str = "auto",
        derivative: str = "auto",
        difference_step: float = 1e-2,
        local_updates: str = "auto",
        matching_weight: Any = 1.0,
        group: GroupConsistency | None = None,
        patience: int | None = None,
        memory_gib: float | int | None = None,
        frames: int = 10,
        save_every: int = 100,
        target: str = "observed",
    ) -> None:
        _check("steps", steps, steps >= 1, "1 or more")
        _check("restarts", restarts, restarts >= 1, "1 or more")
        _check("derivative", derivative, derivative in METHODS, f"one of {', '.join(METHODS)}")
        _check("local_updates", local_updates, local_updates in LOCAL_UPDATES, f"one of {', '.join(LOCAL_UPDATES)}")
        _check("target", target, target in ("observed", "random"), "observed or random")
        _check("difference_step", difference_step, difference_step > 0, "a positive number")
        _check("memory_gib", memory_gib, memory_gib is None or memory_gib > 0, "a positive number of GiB, or null")
        _check("patience", patience, patience is None or patience >= 1, "a number of steps, or null")
        _check("group", group, group is None or restarts > 1, "null, or restarts of 2 or more")
        _check("labels", labels, labels in ("joint", *RULES), f"joint, or one of {', '.join(RULES)}")
        _check("frames", frames, frames >= 0, "0 or more")
        _check("save_every", save_every, save_every >= 0, "0 or more")
        check_piecewise("matching_weight", matching_weight)
        for name, prior in (priors or {}).items():
            _check(
                f"priors.{name}", prior, prior is None or isinstance(prior, Prior), "a prior with its _target_, or null"
            )
        self.objective = objective or Cosine()
        self.parametrisation = parametrisation or Pixels()
        self.priors = {name: prior for name, prior in (priors or {}).items() if prior is not None}
        self.labels = labels
        self.derivative = derivative
        self.difference_step = difference_step
        self.local_updates = local_updates
        self.memory_gib = memory_gib
        self.target = target
        self.baseline = target == "random"
        self.settings = SearchSettings(
            optimiser or OptimiserSettings(),
            schedule or Schedule(),
            steps,
            restarts,
            matching_weight,
            group,
            patience,
            frames,
            save_every,
        )
        if not self.settings.optimiser.elementwise:
            _check("group", group, group is None, "null for L-BFGS, whose candidates do not see one another")

    @property
    def cost(self) -> float:  # type: ignore[override]
        """In steps of one candidate."""
        steps = self.settings.steps * self.settings.restarts
        return float(steps if self.settings.optimiser.elementwise else steps * self.settings.optimiser.inner)

    def shrink(self, device: torch.device) -> str:
        """Fewer candidates together; nothing where there was only one."""
        if self._chunked < 2:
            return ""
        self.memory_gib = (self.memory_gib or default_budget(device)) / 2
        return f"memory_gib={self.memory_gib:g}"

    def fits(self, image_shape: tuple[int, ...]) -> None:
        self.parametrisation.fits(image_shape)

    def run(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Reconstruction:
        """Raises NotApplicable where a label rule, a prior or the update's kind does not allow it."""
        found = self.run_many([observation], [rng], device)[0]
        if isinstance(found, NotApplicable):
            raise found
        return found

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
                    outcomes[index] = refusal
            # L-BFGS chooses its step from all that it is given: one candidate at a time.
            alone = not self.settings.optimiser.elementwise or self._local(problems) == "surrogate"
            batches = [[index] for index in range(len(ready))] if alone else [list(range(len(ready)))]
            for part, batch in enumerate(batches):
                if not batch:
                    continue
                chosen = [problems[index] for index in batch]
                session = self.session.part(f"{number}-{part}") if len(observations) > 1 else self.session
                results = self._search(chosen, [rngs[ready[index]] for index in batch], device, session)
                for index, result in zip(batch, results, strict=True):
                    outcomes[ready[index]] = _reconstruction(problems[index], result)
        return [outcome for outcome in outcomes if outcome is not None]

    def _problem(self, observation: Observation, rng: torch.Generator, device: torch.device) -> Problem:
        self.check(observation)
        self.objective.prepare(observation)
        labels = known_labels(self.labels, observation, rng)
        labels = None if labels is None else labels.to(device)
        shared = shared_update(observation, local_updates(self.local_updates, observation), device)
        target = of_images(observation, shared)
        if self.target == "observed":
            problem = make_problem(observation, target, labels, self.parametrisation, self.priors, device)
        else:
            noise, target = blind(observation, rng), random_target(target, rng)
            problem = make_problem(
                noise, target, labels, self.parametrisation, self.priors, device, blind_of=observation
            )
        batches = local_updates(self.local_updates, observation) == "unroll"
        batches = batches and observation.protocol.batch_size < problem.count
        # A group compares pictures place by place, and so does a generator that is asked for classes.
        free = labels is not None and self.settings.group is None and problem.space.labels is None
        return replace(problem, ordered=not (batches and free))

    def _local(self, problems: Sequence[Problem]) -> str:
        return local_updates(self.local_updates, problems[0].observation) if problems else "gradient"

    def _search(
        self,
        problems: list[Problem],
        rngs: Sequence[torch.Generator],
        device: torch.device,
        session: Session,
        settings: SearchSettings | None = None,
    ) -> list[BestCandidate]:
        """One search; `settings` in place of the attack's own where it is not the first of several."""
        settings = settings or self.settings
        local = self._local(problems)
        together = len(problems) * settings.restarts if settings.optimiser.elementwise else 1
        derivative, method = self._derivative(problems[0].observation, problems[0].target, local, together, device)
        trained = derivative.update.victim.params
        # In the model's order, which observations read from disk have lost.
        problems = [replace(p, target={name: p.target[name] for name in trained if name in p.target}) for p in problems]
        generators = [
            torch.Generator().manual_seed(int(seed))
            for rng in rngs
            for seed in torch.randint(2**62, (settings.restarts,), generator=rng)
        ]
        surrogate = local == "surrogate"
        if settings.optimiser.elementwise:
            search = SearchState(problems, derivative, settings, generators, device, surrogate)
            search.chunk = self._chunk(search, derivative, method, device)
            if search.chunk == 1 and method in DIFFERENCES:
                set_fused_attention(derivative.update.victim.model, True)
            return search.run(session)
        self._chunked = 1
        alone = replace(settings, restarts=1)
        found: list[BestCandidate] = []
        for index, generator in enumerate(generators):
            search = SearchState(problems, derivative, alone, [generator], device, surrogate)
            try:
                found += search.run(session.part(f"restart-{index}"))
            except NotFiniteError as error:
                logger.warning("restart %d: %s", index, error)
        if not found:
            raise NotFiniteError("the objective was not finite in any restart")
        return [min(found, key=lambda one: one.values["objective"])]

    def _derivative(
        self, observation: Observation, shared: State, local: str, candidates: int, device: torch.device
    ) -> tuple[MixedDerivative, str]:
        """The mixed derivative and the name of its method, `auto` resolved."""
        plain = local == "gradient"
        method = self.derivative
        if method == "auto":
            exact = not plain or not self.settings.optimiser.elementwise or observation.roles.qkv_weight is None
            double = next(iter(shared.values())).dtype == torch.float64
            method = "double_backward" if exact or double else "finite_difference"
        by_difference = method in DIFFERENCES
        if by_difference and not plain:
            raise NotApplicable(f"derivative={method} sees one gradient, local_updates={local} needs double_backward")
        # torch maps fused attention over candidates on a GPU alone; elsewhere it falls back on a loop.
        fused = by_difference and (candidates == 1 or device.type == "cuda")
        victim = make_victim(observation, shared, device, fused)
        update = make_update_map(local, victim, observation)
        objective = with_clip(self.objective.prepare(observation), observation, local)
        return make_derivative(method, update, objective, self.difference_step), method

    def _chunk(self, search: SearchState, derivative: MixedDerivative, method: str, device: torch.device) -> int:
        if search.count == 1:
            self._chunked = 1
            return 1
        budget = self.memory_gib or default_budget(device)
        one = {name: variable[0].detach() for name, variable in search.variables.items() if name != "point"}
        one["images"] = search.images()[0].detach()
        steps = 1 if derivative.update.plain else search.problems[0].observation.protocol.steps
        self._chunked = chunk_size(search.count, candidate_bytes(derivative, method, one, steps), budget)
        return self._chunked


def _reconstruction(problem: Problem, found: BestCandidate) -> Reconstruction:
    labels = found.labels.argmax(dim=-1) if found.labels.is_floating_point() else found.labels
    reason = "a search: a low objective can belong to another picture"
    return Reconstruction(
        images=problem.observation.to_unit_range(found.images).clamp(0.0, 1.0),
        labels=labels,
        certificate=Certificate("none", reason, found.values),
        trace=tuple(found.trace),
        frames=tuple(found.frames),
    )


def _alike(observations: Sequence[Observation]) -> list[list[int]]:
    """Indices of observations that one model with one state serves, in order."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, observation in enumerate(observations):
        update = observation.update
        key = (
            id(observation.global_state),
            observation.protocol,
            update.kind,
            tuple(sorted(update.tensors)),
            repr(observation.defenses),
            observation.image_shape,
            examples_behind(observation),
            None if (masked := masked_rows(observation)) is None else tuple(masked.tolist()),
        )
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _check(key: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise ConfigError(key, value, expected)
