"""Many likely images at once: of which unknowns, and which numbers of an update, one victim's ensemble is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from attacks.optimization.problem import Problem
from attacks.optimization.search.base import SearchTask
from attacks.optimization.search.memory import GIB, chunk_size
from attacks.optimization.second_order.residual import Residual, shape_of
from attacks.optimization.second_order.stages import DIRECTION_BYTES, StagePlan, memory_of, most_together
from attacks.optimization.second_order.unknowns.prior_directions import PriorDirections
from attacks.optimization.second_order.unknowns.read_directions import ReadDirections
from attacks.optimization.second_order.warm_start.ensemble import MOST_DRAWS, Ensemble
from attacks.optimization.second_order.warm_start.known_logits import KnownLogits
from fedsim.bounds.gaussian_prior import ImagePrior

MOST_PIXELS = 8_000
"""Of all images together: above it what varies among them takes too long to find."""
MANY, SKETCHED = 10**5, 2**14
"""Numbers of an update above which they are sketched, and to how many."""
EXAMPLE_BYTES = 32
"""Of each number that an example would share, with the copies that are weighed."""
COLUMNS = 256
"""Unknowns whose share of an image is found at once."""


@dataclass(frozen=True)
class CountSketch:
    """Numbers in few buckets, each with a sign: lengths and angles of many rows stay about as they are.

    Charikar, Chen and Farach-Colton 2002; Clarkson and Woodruff 2013.
    """

    buckets: Tensor
    signs: Float[Tensor, " numbers"]

    @classmethod
    def of(cls, numbers: int, rng: torch.Generator, device: torch.device) -> "CountSketch":
        buckets = torch.randint(SKETCHED, (numbers,), generator=rng)
        signs = torch.randint(2, (numbers,), generator=rng) * 2.0 - 1.0
        return cls(buckets.to(device), signs.to(device, torch.float32))

    def __call__(self, rows: Float[Tensor, "n numbers"]) -> Float[Tensor, "n sketched"]:
        return rows.new_zeros(len(rows), SKETCHED).index_add_(1, self.buckets, rows * self.signs)

    def variances(self, each: Float[Tensor, " numbers"]) -> Float[Tensor, " sketched"]:
        """Of independent errors."""
        return each.new_zeros(SKETCHED).index_add_(0, self.buckets, each)


@dataclass(frozen=True)
class ManyImages:
    """What an `Ensemble` of one victim's images regresses on what.

    Attributes:
        known, coarse: the client's computation with the errors of its logits, and the same in float32.
        together: gradients that are computed at once.
    """

    task: SearchTask
    varied: PriorDirections | ReadDirections
    shape: tuple[int, ...]
    known: KnownLogits
    coarse: KnownLogits
    together: int

    @classmethod
    def of(
        cls,
        problem: Problem,
        task: SearchTask,
        plan: StagePlan,
        prior: ImagePrior,
        known: KnownLogits,
        coarse: KnownLogits,
        together: int | None,
    ) -> "ManyImages | None":
        """None where images are too large.

        Args:
            together: columns of J at once; None where it is not whole.
        """
        shape, numbers = shape_of(problem), len(known.residual.target)
        varied = plan.varied
        if varied is None:
            if torch.Size(shape).numel() > MOST_PIXELS:
                return None
            varied = PriorDirections.of(problem.observation, prior, shape, task.device)
        if together is None:
            together = chunk_size(most_together(task.device), DIRECTION_BYTES * numbers, memory_of(task) / GIB)
        return cls(task, varied, shape, known, coarse, together)

    @property
    def most(self) -> int:
        """Examples at once, by the memory that their rows take."""
        numbers = len(self.known.residual.target)
        each = EXAMPLE_BYTES * (SKETCHED if numbers > MANY else numbers)
        return min(MOST_DRAWS, int(memory_of(self.task) / each))

    def ensemble(self, enough: float, report: Callable[[float], None], seed: int) -> Ensemble:
        """See `Ensemble` for the arguments."""
        residual, coarse = self.known.images(self.images), self.coarse.images(self.images)
        noise, sketch = _variances(residual, self.known), self._sketch(seed)
        if sketch is not None and noise is not None:
            noise = sketch.variances(noise.float())

        def rows(z: Tensor) -> Tensor:
            if sketch is None:
                return vmap(coarse, chunk_size=self.together)(z.float())
            return torch.cat([sketch(vmap(coarse)(part)) for part in z.float().split(self.together)])

        def cost(z: Tensor) -> float:
            return float(residual(z).square().sum())

        return Ensemble(rows, cost, enough, report, self.most, noise, self._scale)

    def images(self, z: Float[Tensor, " unknowns"]) -> Float[Tensor, "batch c h w"]:
        """As the model reads them."""
        return self.varied.point(z).view(self.shape)

    @property
    def _numbers(self) -> int:
        """Of an example's rows, those of its logits among them."""
        errors = self.known.errors
        return len(self.known.residual.target) + (0 if errors is None else errors.weights.numel())

    def _sketch(self, seed: int) -> CountSketch | None:
        if self._numbers <= MANY:
            return None
        return CountSketch.of(self._numbers, torch.Generator().manual_seed(seed), self.task.device)

    @cached_property
    def _scale(self) -> Float[Tensor, " unknowns"]:
        """Mean square of what a unit of each unknown stands for."""
        units = torch.eye(self.varied.count, dtype=torch.float64, device=self.task.device)
        middle = self.varied.point(torch.zeros_like(units[0]))
        found: Tensor = vmap(lambda unit: (self.varied.point(unit) - middle).square().mean(), chunk_size=COLUMNS)(units)
        return found


def _variances(residual: Residual, known: KnownLogits) -> Float[Tensor, " rows"] | None:
    """Of each row's error."""
    if residual.errors is None:
        return None
    errors = residual.errors if known.errors is None else torch.cat([residual.errors, known.errors.doubts])
    return errors.square()
