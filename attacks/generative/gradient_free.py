"""GGL: a search of the generator's latent that needs no derivative (Li et al. 2022)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
import torch
from cmaes import CMA, SepCMA
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from attacks.base import Frame
from attacks.generative.spaces import GeneratorLatent
from attacks.optimization.engine import GradientMatching
from attacks.optimization.matching.derivative import MixedDerivative
from attacks.optimization.problem import Problem
from attacks.optimization.search.base import BestCandidate, NotFiniteError, Search, SearchTask
from attacks.optimization.search.memory import candidate_bytes, chunk_size, default_budget
from attacks.optimization.settings import Budget, Matching
from fedsim.errors import NotApplicable, one_of, require
from fedsim.settings.grouped import grouped

logger = getLogger(__name__)

COVARIANCES: dict[str, Any] = {"full": CMA, "diagonal": SepCMA}
Evaluation = Callable[[Tensor, float], tuple[Tensor, Tensor]]
WORST = 1e30
"""What a candidate is worth whose objective is not finite."""


@dataclass(frozen=True)
class Evolution(Search):
    """CMA-ES: a search that needs no derivative.

    Attributes:
        generations: of candidates.
        population: candidates of a generation; None: 4 + 3 ln(dimensions), rounded down.
        sigma: standard deviation of the first generation.
        covariance: `full`, or `diagonal`, which learns faster where there are hundreds of dimensions.
        restarts: the one of least objective is the result.
    """

    generations: int = 500
    population: int | None = None
    sigma: float | int = 1.0
    covariance: str = "diagonal"
    restarts: int = 1

    def __post_init__(self) -> None:
        size = self.population
        require("generations", self.generations, self.generations >= 1, "1 or more")
        require("population", size, size is None or size >= 4, "4 or more, or null")
        require("sigma", self.sigma, self.sigma > 0, "a positive number")
        one_of("covariance", self.covariance, COVARIANCES)
        require("restarts", self.restarts, self.restarts >= 1, "1 or more")

    @property
    def cost(self) -> float:
        return float(self.generations * self.restarts)

    def run(self, task: SearchTask, rngs: Sequence[torch.Generator]) -> list[BestCandidate]:
        """Victim after victim; each generation is computed at once, as far as memory allows."""
        derivative, method = task.derivative("double_backward")
        results = []
        for index, (problem, rng) in enumerate(zip(task.ordered(derivative), rngs, strict=True)):
            if problem.labels is None:
                raise NotApplicable("a search without derivatives needs the labels first")
            evaluate = _evaluation(problem, derivative, method, task)
            tries = []
            for restart, seed in enumerate(torch.randint(2**31, (self.restarts,), generator=rng).tolist()):
                part = task.part(f"victim-{index}-restart-{restart}")
                try:
                    tries.append(self.evolve(problem, evaluate, seed, part))
                except NotFiniteError as error:
                    logger.warning("restart %d: %s", restart, error)
            if not tries:
                raise NotFiniteError("the objective was finite for no candidate of any restart")
            results.append(min(tries, key=lambda one: one.values["objective"]))
        return results

    def evolve(self, problem: Problem, evaluate: Evaluation, seed: int, task: SearchTask) -> BestCandidate:
        """Evolve one restart."""
        budget, device, session = task.budget, task.device, task.session
        evolution = _Evolution(problem, self, seed)
        saved = session.load()
        if saved is not None:
            evolution.replay(*saved)
        every = max(1, self.generations // max(1, budget.frames))
        dtype = next(iter(problem.target.values())).dtype
        while evolution.generation < self.generations:
            points = evolution.ask()
            objective, matching = evaluate(points.to(device=device, dtype=dtype), evolution.fraction)
            evolution.tell(objective.double().cpu(), matching.double().cpu())
            if evolution.generation % every == 0 or evolution.generation == self.generations:
                evolution.record(budget.frames > 0, device, dtype)
            if budget.save_every and evolution.generation % budget.save_every == 0:
                session.save(*evolution.memory())
            session.progress(evolution.generation, self.generations, {"objective": evolution.best})
        return evolution.result(device, dtype)


class GGL(GradientMatching):
    """CMA-ES over the latents of a generator that is asked for the recovered labels; a batch's are searched together.

    Its derivative-free search leaves no room for soft labels and for surrogates, whose α it would have to learn.
    """

    joint = False

    @grouped
    def __init__(
        self,
        latent: GeneratorLatent,
        search: Evolution | None = None,
        problem: Matching | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(problem, search or Evolution(), budget, latent)
        labels, updates = self.problem.labels, self.problem.local_updates
        require("labels", labels, labels != "joint", "a rule, or classes: soft labels would need a derivative")
        require("local_updates", updates, updates != "surrogate", "auto, gradient or unroll")


def _evaluation(problem: Problem, derivative: MixedDerivative, method: str, task: SearchTask) -> Evaluation:
    """(objective, distance of the gradients) of [candidates, batch, latent], at a fraction of the run."""
    assert problem.labels is not None
    labels, device = problem.labels, task.device
    dtype = next(iter(problem.target.values())).dtype
    images = torch.zeros(problem.count, *problem.observation.image_shape, device=device, dtype=dtype)
    one = {"images": images, "labels": labels}
    each = candidate_bytes(derivative, method, one, problem.observation.protocol.steps)

    def distance(images: Tensor) -> Tensor:
        return derivative.objective(derivative.update({"images": images, "labels": labels}), problem.target)

    def evaluate(points: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
        found, priors = [], []
        room = task.budget.memory_gib or default_budget(device)
        together = chunk_size(len(points), each, room)
        task.report(together)
        for part in points.split(together):
            with torch.no_grad():
                images = problem.space.images(part)
            found.append(vmap(distance)(images).detach())
            total = problem.space.penalty(part)
            for prior, term in problem.terms.values():
                if (factor := prior.weight_at(fraction)) > 0:
                    total = total + factor * torch.stack([term(image) for image in images]).detach()
            priors.append(total.detach())
        matching = torch.cat(found)
        return matching + torch.cat(priors), matching

    return evaluate


class _Evolution:
    """CMA-ES of one victim: what was told to it, so that another try can be told the same, and the best so far.

    The optimiser's own state would have to be pickled. It follows from its seed and the values that it was told: a
    search goes on by hearing them again, without computing any gradient.
    """

    def __init__(self, problem: Problem, settings: Evolution, seed: int) -> None:
        space: Any = problem.space
        self._generations = settings.generations
        self._problem, self._shape = problem, (problem.count, space.generator.latent)
        dimensions = math.prod(self._shape)
        size = settings.population or 4 + math.floor(3 * math.log(dimensions))
        make = COVARIANCES[settings.covariance]
        self._cma = make(np.zeros(dimensions), float(settings.sigma), seed=seed, population_size=size)
        self._asked: list[np.ndarray] = []
        self._values: list[Float[Tensor, " population"]] = []
        self.best, self._matching = math.inf, math.inf
        self._weights: list[float] = []
        self._point = torch.zeros(self._shape, dtype=torch.float64)
        self._rows: list[dict[str, float]] = []
        self._frames: list[Frame] = []

    @property
    def generation(self) -> int:
        return len(self._values)

    @property
    def fraction(self) -> float:
        """The share of the run that is over."""
        return self.generation / self._generations

    def ask(self) -> Float[Tensor, "population batch latent"]:
        self._asked = [self._cma.ask() for _ in range(self._cma.population_size)]
        points: Tensor = torch.from_numpy(np.stack(self._asked)).unflatten(1, self._shape)
        return points

    def tell(self, objective: Float[Tensor, " population"], matching: Float[Tensor, " population"]) -> None:
        finite = torch.where(objective.isfinite(), objective, torch.full_like(objective, WORST))
        self._cma.tell(list(zip(self._asked, finite.tolist(), strict=True)))
        weights = [prior.weight_at(self.fraction) for prior, _ in self._problem.terms.values()]
        if weights != self._weights:
            # What was best under other weights is not comparable.
            self._weights, self.best = weights, math.inf
        self._values.append(finite)
        first = int(finite.argmin())
        if float(finite[first]) < min(self.best, WORST):
            self.best, self._matching = float(finite[first]), float(matching[first])
            self._point = torch.from_numpy(self._asked[first].copy()).view(self._shape)

    def record(self, with_frame: bool, device: torch.device, dtype: torch.dtype) -> None:
        values = {"objective": float(self._values[-1].min()), "best": self.best, "matching": self._matching}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._rows.append({"step": float(self.generation), **finite})
        if with_frame:
            observation = self._problem.observation
            images = observation.to_unit_range(self._images(device, dtype)).clamp(0, 1).float().cpu()
            self._frames.append(Frame(self.generation, images, finite))

    def memory(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"told": torch.stack(self._values)}
        tensors |= {f"frame/{index}": frame.images for index, frame in enumerate(self._frames)}
        frames = [[frame.step, frame.values] for frame in self._frames]
        return tensors, {"rows": self._rows, "frames": frames, "matching": self._matching}

    def replay(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        for values in tensors["told"]:
            self.ask()
            self.tell(values, values)
        self._matching = float(record["matching"])
        self._rows = record["rows"]
        self._frames = [
            Frame(step, tensors[f"frame/{index}"], values) for index, (step, values) in enumerate(record["frames"])
        ]

    def result(self, device: torch.device, dtype: torch.dtype) -> BestCandidate:
        """Raises NotFiniteError where no candidate's objective was finite."""
        if not math.isfinite(self.best):
            raise NotFiniteError("the objective was finite for no candidate")
        assert self._problem.labels is not None
        values = {
            "objective": self.best,
            "matching": self._matching,
            "steps": float(self.generation),
            "candidates": float(self._cma.population_size),
        }
        images, point = self._images(device, dtype), self._point.to(device)
        return BestCandidate(images, self._problem.labels, values, point, self._rows, self._frames)

    def _images(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "batch c h w"]:
        with torch.no_grad():
            return self._problem.space.images(self._point[None].to(device=device, dtype=dtype))[0]
