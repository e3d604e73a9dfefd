"""Searches one after another, each from where the best of the one before ended: GIAS and GIFD."""

from collections.abc import Callable, Sequence
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
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, Search, SearchTask
from attacks.optimization.search.descent import Descent
from attacks.optimization.settings import Budget, Matching
from fedsim.errors import require
from fedsim.settings.grouped import SettingsGroup, grouped


@dataclass(frozen=True)
class SearchStage:
    """One of the searches behind the first: its space, and how long and how fast it is searched."""

    name: str
    steps: int
    lr: float
    space: Callable[[GeneratedSpace, BestCandidate], GeneratedSpace]


@dataclass(frozen=True)
class StagedDescent(Search):
    """A search of a generator's latent, then of more of the generator.

    Restarts are of the latent alone: its best candidate goes on, with its labels. The trace and the frames are those
    of all searches, one behind the other.

    Attributes:
        first: of the latent.
        stages: the searches behind it.
        keep_least: the search of least gradient distance is the result, or else the last.
    """

    first: Descent
    stages: Sequence[SearchStage]
    keep_least: bool = False

    def __post_init__(self) -> None:
        optimiser = self.first.moves
        require("optimiser.name", optimiser.name, optimiser.elementwise, "adam or signed_adam")
        require("group", self.first.group, self.first.group is None, "null: one candidate alone goes on")

    @property
    def cost(self) -> float:
        return self.first.cost + sum(stage.steps for stage in self.stages)

    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        found = self.first.run(task.part("latent"), rngs)
        problems, kept, done = list(task.problems), list(found), self.first.steps
        for one in kept:
            one.values["stage"] = 0.0
        for number, stage in enumerate(self.stages, start=1):
            spaces = [stage.space(_generated(p), f) for p, f in zip(problems, found, strict=True)]
            # The labels too are those that the point was found with, in their order; soft ones move no more.
            ends = zip(problems, spaces, found, strict=True)
            problems = [
                replace(p, space=space, labels=f.labels, alpha=f.values.get("alpha", p.alpha)) for p, space, f in ends
            ]
            optimiser = replace(self.first.moves, lr=stage.lr)
            again = replace(self.first, optimiser=optimiser, steps=stage.steps, restarts=1)
            later = again.run(task.part(stage.name, problems), rngs)
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


@dataclass(frozen=True)
class WeightStage(SettingsGroup):
    """The search over the generator's weights; 0 steps leave it out."""

    weight_steps: int = 500
    weight_lr: float = 1e-3

    def __post_init__(self) -> None:
        require("weight_steps", self.weight_steps, self.weight_steps >= 0, "0 or more")
        require("weight_lr", self.weight_lr, self.weight_lr > 0, "a positive number")

    def stages(self) -> Sequence[SearchStage]:
        return (SearchStage("weights", self.weight_steps, self.weight_lr, _weights_of),) if self.weight_steps else ()


@dataclass(frozen=True)
class LayerStages(SettingsGroup):
    """The searches of what inner stages of the generator read.

    Attributes:
        layers: numbers of the stages whose input is searched, ascending, 1 or more.
        radii: of the balls, one a layer, as multiples of the L1 norm of the features that a search starts with.
        layer_steps, layer_lrs: one a layer.
    """

    layers: Sequence[int]
    radii: Sequence[float]
    layer_steps: Sequence[int]
    layer_lrs: Sequence[float]

    def stages(self, generator: Generator) -> Sequence[SearchStage]:
        """Raises ConfigError for layers that the generator does not have."""
        count = len(generator.stages)
        require("generator.module", type(generator.module).__name__, count >= 2, "a generator with `stages`")
        numbers = [int(layer) for layer in self.layers]
        good = numbers and numbers == sorted(set(numbers)) and numbers[0] >= 1 and numbers[-1] < count
        require("layers", list(self.layers), bool(good), f"ascending numbers of stages, from 1 to {count - 1}")
        for key in ("radii", "layer_steps", "layer_lrs"):
            values = list(getattr(self, key))
            good = len(values) == len(numbers) and all(value > 0 for value in values)
            require(key, values, good, f"a positive number for each of the {len(numbers)} layers")
        plan = zip(numbers, self.radii, self.layer_steps, self.layer_lrs, strict=True)
        return [SearchStage(f"layer-{n}", int(s), float(lr), _features_of(n, float(r))) for n, r, s, lr in plan]


class GIAS(GradientMatching):
    """The latent, then the generator's weights with the latent held (Jeon et al. 2021, algorithm 1)."""

    @grouped
    def __init__(
        self,
        latent: GeneratorLatent,
        weights: WeightStage | None = None,
        problem: Matching | None = None,
        search: Descent | None = None,
        budget: Budget | None = None,
    ) -> None:
        staged = StagedDescent(search or Descent(), (weights or WeightStage()).stages())
        super().__init__(problem, staged, budget, latent)


class GIFD(GradientMatching):
    """The latent, then what inner stages read, each within an L1 ball around where it starts (Fang et al. 2023).

    The result is that of the search with the least gradient distance.
    """

    @grouped
    def __init__(
        self,
        latent: GeneratorLatent,
        inner: LayerStages,
        problem: Matching | None = None,
        search: Descent | None = None,
        budget: Budget | None = None,
    ) -> None:
        staged = StagedDescent(search or Descent(), inner.stages(latent.generator), keep_least=True)
        super().__init__(problem, staged, budget, latent)


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
