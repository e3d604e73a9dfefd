"""Searches one after another, each from where the best of the one before ended: GIAS and GIFD."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from attacks.base import Frame
from attacks.generative.generator import Generator
from attacks.generative.spaces import (
    FeatureSpace,
    GeneratedSpace,
    GeneratorLatent,
    LatentSpace,
    WeightSpace,
    features_at,
)
from attacks.optimization.engine import GradientMatching
from attacks.optimization.matching.objectives import Objective
from attacks.optimization.priors.base import Prior
from attacks.optimization.problem import Problem
from attacks.optimization.search.optimisers import OptimiserSettings
from attacks.optimization.search.schedule import Schedule
from attacks.optimization.search.search import BestCandidate, SearchSettings
from attacks.session import Session
from fedsim.errors import ConfigError


@dataclass(frozen=True)
class SearchStage:
    """One of the searches behind the first: its space, and how long and how fast it is searched."""

    name: str
    steps: int
    lr: float
    space: Callable[[GeneratedSpace, BestCandidate], GeneratedSpace]


class StagedMatching(GradientMatching):
    """Gradient matching over a generator's latent, then over more of the generator.

    Restarts are of the latent alone: its best candidate goes on, with its labels. The trace and the frames are those
    of all searches, one behind the other.

    Args:
        generator: the prior.
        norm_weight: factor on the latent's mean square.
        conditional: ask for the recovered labels, where the generator knows classes.
        latent_scale: standard deviation of the latent's start.

    The others are those of `GradientMatching`.
    """

    keep_least = False
    """Whether the search of least gradient distance is the result, or else the last."""

    def __init__(
        self,
        generator: Generator,
        objective: Objective | None = None,
        priors: Mapping[str, Prior | None] | None = None,
        optimiser: OptimiserSettings | None = None,
        schedule: Schedule | None = None,
        steps: int = 500,
        restarts: int = 1,
        labels: str = "auto",
        norm_weight: float | int = 0.0,
        conditional: bool = True,
        latent_scale: float | int = 1.0,
        derivative: str = "auto",
        local_updates: str = "auto",
        memory_gib: float | int | None = None,
        frames: int = 10,
        save_every: int = 100,
        target: str = "observed",
    ) -> None:
        super().__init__(
            objective=objective,
            parametrisation=GeneratorLatent(generator, latent_scale, norm_weight, conditional),
            priors=priors,
            optimiser=optimiser,
            schedule=schedule,
            steps=steps,
            restarts=restarts,
            labels=labels,
            derivative=derivative,
            local_updates=local_updates,
            memory_gib=memory_gib,
            frames=frames,
            save_every=save_every,
            target=target,
        )
        if not self.settings.optimiser.elementwise:
            raise ConfigError("optimiser.name", self.settings.optimiser.name, "adam, signed_adam or sgd")
        self.generator = generator

    @property
    def cost(self) -> float:  # type: ignore[override]
        return super().cost + sum(stage.steps for stage in self.stages())

    @abstractmethod
    def stages(self) -> Sequence[SearchStage]:
        """The searches behind that of the latent."""

    def _search(
        self,
        problems: list[Problem],
        rngs: Sequence[torch.Generator],
        device: torch.device,
        session: Session,
        settings: SearchSettings | None = None,
    ) -> list[BestCandidate]:
        first = settings or self.settings
        found = super()._search(problems, rngs, device, session.part("latent"), first)
        kept, done = list(found), first.steps
        for one in kept:
            one.values["stage"] = 0.0
        for number, stage in enumerate(self.stages(), start=1):
            spaces = [stage.space(_generated(p), f) for p, f in zip(problems, found, strict=True)]
            # The labels too are those that the point was found with, in their order; soft ones move no more.
            ends = zip(problems, spaces, found, strict=True)
            problems = [replace(p, space=space, labels=f.labels) for p, space, f in ends]
            optimiser = replace(first.optimiser, lr=stage.lr)
            again = replace(first, optimiser=optimiser, steps=stage.steps, restarts=1)
            later = super()._search(problems, rngs, device, session.part(stage.name), again)
            found = [_joined(before, after, done) for before, after in zip(found, later, strict=True)]
            done += stage.steps
            for index, one in enumerate(found):
                one.values["stage"] = float(number)
                if not self.keep_least or one.values["matching"] < kept[index].values["matching"]:
                    kept[index] = one
        # The way is that of all searches, also where an early one is the result.
        return [
            replace(best, trace=last.trace, frames=_ending(last.frames, best, p))
            for best, last, p in zip(kept, found, problems, strict=True)
        ]


class GIAS(StagedMatching):
    """The latent, then the generator's weights with the latent held (Jeon et al. 2021, algorithm 1).

    Args:
        weight_steps, weight_lr: of the search over the weights; 0 steps leave it out.
    """

    def __init__(
        self,
        generator: Generator,
        objective: Objective | None = None,
        priors: Mapping[str, Prior | None] | None = None,
        optimiser: OptimiserSettings | None = None,
        schedule: Schedule | None = None,
        steps: int = 500,
        weight_steps: int = 500,
        weight_lr: float = 1e-3,
        restarts: int = 1,
        labels: str = "auto",
        norm_weight: float | int = 0.0,
        conditional: bool = True,
        latent_scale: float | int = 1.0,
        derivative: str = "auto",
        local_updates: str = "auto",
        memory_gib: float | int | None = None,
        frames: int = 10,
        save_every: int = 100,
        target: str = "observed",
    ) -> None:
        super().__init__(
            generator, objective, priors, optimiser, schedule, steps, restarts, labels, norm_weight, conditional,
            latent_scale, derivative, local_updates, memory_gib, frames, save_every, target,
        )  # fmt: skip
        if weight_steps < 0:
            raise ConfigError("weight_steps", weight_steps, "0 or more")
        if not weight_lr > 0:
            raise ConfigError("weight_lr", weight_lr, "a positive number")
        self.weight_steps, self.weight_lr = weight_steps, weight_lr

    def stages(self) -> Sequence[SearchStage]:
        if self.weight_steps == 0:
            return ()
        return (SearchStage("weights", self.weight_steps, self.weight_lr, _weights_of),)


class GIFD(StagedMatching):
    """The latent, then what inner stages read, each within an L1 ball around where it starts (Fang et al. 2023).

    The result is that of the search with the least gradient distance.

    Args:
        layers: numbers of the stages whose input is searched, ascending, 1 or more.
        radii: of the balls, one a layer, as multiples of the L1 norm of the features that a search starts with.
        layer_steps, layer_lrs: one a layer.
    """

    keep_least = True

    def __init__(
        self,
        generator: Generator,
        layers: Sequence[int],
        radii: Sequence[float],
        layer_steps: Sequence[int],
        layer_lrs: Sequence[float],
        objective: Objective | None = None,
        priors: Mapping[str, Prior | None] | None = None,
        optimiser: OptimiserSettings | None = None,
        schedule: Schedule | None = None,
        steps: int = 500,
        restarts: int = 1,
        labels: str = "auto",
        norm_weight: float | int = 0.0,
        conditional: bool = True,
        latent_scale: float | int = 1.0,
        derivative: str = "auto",
        local_updates: str = "auto",
        memory_gib: float | int | None = None,
        frames: int = 10,
        save_every: int = 100,
        target: str = "observed",
    ) -> None:
        super().__init__(
            generator, objective, priors, optimiser, schedule, steps, restarts, labels, norm_weight, conditional,
            latent_scale, derivative, local_updates, memory_gib, frames, save_every, target,
        )  # fmt: skip
        count = len(generator.stages)
        if count < 2:
            raise ConfigError("generator.module", type(generator.module).__name__, "a generator with `stages`")
        numbers = [int(layer) for layer in layers]
        if not numbers or numbers != sorted(set(numbers)) or numbers[0] < 1 or numbers[-1] >= count:
            raise ConfigError("layers", list(layers), f"ascending numbers of stages, from 1 to {count - 1}")
        for key, values in (("radii", radii), ("layer_steps", layer_steps), ("layer_lrs", layer_lrs)):
            if len(values) != len(numbers) or not all(value > 0 for value in values):
                raise ConfigError(key, list(values), f"a positive number for each of the {len(numbers)} layers")
        self.plan = list(zip(numbers, radii, layer_steps, layer_lrs, strict=True))

    def stages(self) -> Sequence[SearchStage]:
        return [
            SearchStage(f"layer-{layer}", int(steps), float(lr), _features_of(layer, float(radius)))
            for layer, radius, steps, lr in self.plan
        ]


def _weights_of(space: GeneratedSpace, found: BestCandidate) -> GeneratedSpace:
    assert isinstance(space, LatentSpace)
    return WeightSpace(space, found.point)


def _features_of(layer: int, radius: float) -> Callable[[GeneratedSpace, BestCandidate], GeneratedSpace]:
    def make(space: GeneratedSpace, found: BestCandidate) -> GeneratedSpace:
        return FeatureSpace(space, features_at(space, found.point, layer), layer, radius)

    return make


def _generated(problem: Problem) -> GeneratedSpace:
    assert isinstance(problem.space, GeneratedSpace)
    return problem.space


def _joined(before: BestCandidate, after: BestCandidate, done: int) -> BestCandidate:
    """`after` with the way that led to it in front; its steps are counted from the very first."""
    trace = [{**row, "step": row["step"] + done} for row in after.trace]
    frames = [replace(frame, step=frame.step + done) for frame in after.frames]
    values = {**after.values, "steps": before.values["steps"] + after.values["steps"]}
    return replace(after, values=values, trace=before.trace + trace, frames=before.frames + frames)


def _ending(frames: list[Frame], best: BestCandidate, problem: Problem) -> list[Frame]:
    """The frames with the result as the last, where the last search is not the one that it came from."""
    if not frames or frames[-1].images is best.frames[-1].images:
        return frames
    images = problem.observation.to_unit_range(best.images).clamp(0, 1).float().cpu()
    return [*frames, Frame(frames[-1].step + 1, images, {"matching": best.values["matching"]})]
