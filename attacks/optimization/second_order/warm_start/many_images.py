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
from attacks.optimization.second_order.residual.residual import Residual, shape_of
from attacks.optimization.second_order.stages import DIRECTION_BYTES, StagePlan, memory_of, most_together
from attacks.optimization.second_order.steps.sketch import folded
from attacks.optimization.second_order.unknowns.prior_directions import PriorDirections
from attacks.optimization.second_order.unknowns.read_directions import ReadDirections
from attacks.optimization.second_order.warm_start.ensemble import FEWEST, MOST_DRAWS, Ensemble
from attacks.optimization.second_order.warm_start.known_logits import KnownLogits
from fedsim.bounds.gaussian_prior import ImagePrior

Images = Callable[[Tensor], Tensor]

MOST_PIXELS = 8_000
"""Of all images together: above it what varies among them takes too long to find."""
MANY, SKETCHED = 10**5, 2**14 + 1
"""Numbers of an update above which they are sketched, and to how many: see `folded`."""
ROW_BYTES, UNKNOWN_BYTES = 32, 64
"""Of an example, for each number that it would share and for each unknown or other example, with copies."""
COLUMNS = 256
"""Unknowns whose share of an image is found at once."""


@dataclass(frozen=True)
class ManyImages:
    """What an `Ensemble` of one victim's images regresses on what.

    Attributes:
        exact, coarse: the client's computation of images that unknowns stand for, in float64 and float32.
        floor: ‖r‖² that errors leave.
        doubts: how far off each row is that the client's computation has besides.
        together: gradients that are computed at once.
        most: examples at once, by the memory that they take.
    """

    task: SearchTask
    varied: PriorDirections | ReadDirections
    shape: tuple[int, ...]
    exact: Callable[[Images], Residual]
    coarse: Callable[[Images], Residual]
    floor: float
    doubts: Float[Tensor, " others"]
    together: int
    most: int

    @classmethod
    def of(
        cls,
        problem: Problem,
        task: SearchTask,
        plan: StagePlan,
        prior: ImagePrior,
        known: tuple[KnownLogits, KnownLogits] | None,
        together: int | None,
    ) -> "ManyImages | None":
        """None where images are too large, or there is memory for too few.

        Args:
            known: one gradient with the errors of its logits as they are known, in both precisions; None: of several
                local steps, of rounds or of a scaled one, which each image then gets by the client's own loss.
            together: columns of J at once; None where it is not whole.
        """
        own = plan.stages[0].residual
        shape, numbers, room = shape_of(problem), len(own.target), memory_of(task)
        pixels = torch.Size(shape).numel()
        each = ROW_BYTES * (SKETCHED if numbers > MANY else numbers) + UNKNOWN_BYTES * (pixels + MOST_DRAWS)
        most = min(MOST_DRAWS, int(room / each))
        if most < FEWEST or (plan.varied is None and pixels > MOST_PIXELS):
            return None
        varied = plan.varied or PriorDirections.of(problem.observation, prior, shape, task.device)
        if together is None:
            together = chunk_size(most_together(task.device), DIRECTION_BYTES * numbers, room / GIB)
        doubts = own.weights[:0] if known is None or known[0].errors is None else known[0].errors.doubts
        exact, coarse = (
            (_by_own(plan, own), _by_own(plan, plan.coarse)) if known is None else (known[0].images, known[1].images)
        )
        return cls(task, varied, shape, exact, coarse, own.floor, doubts, together, most)

    def ensemble(self, enough: float, report: Callable[[float], None], seed: int) -> Ensemble:
        """See `Ensemble` for the arguments."""
        residual, coarse = self.exact(self.images), self.coarse(self.images)
        assert residual.errors is not None, "a residual in float64 has them"
        noise, factors = torch.cat([residual.errors, self.doubts]).square(), torch.ones(0)
        told: Float[Tensor, " rows"] | float = noise
        sketched = len(residual.target) > MANY
        if sketched:  # what is known less counts less before it shares a row with others
            signal = (residual.weights * residual.target).square().mean()
            weights = signal / (signal + noise)
            signs = torch.randint(2, (len(weights),), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
            factors = (weights * signs.to(weights)).float()
            told = float(noise @ weights.square()) / SKETCHED

        def rows(z: Tensor) -> Tensor:
            if not sketched:
                return vmap(coarse, chunk_size=self.together)(z.float())
            return torch.cat([folded([vmap(coarse)(p)], factors, SKETCHED) for p in z.float().split(self.together)])

        def cost(z: Tensor) -> float:
            return float(residual(z).square().sum())

        return Ensemble(rows, cost, enough, report, self.most, told, self._scale)

    def images(self, z: Float[Tensor, " unknowns"]) -> Float[Tensor, "batch c h w"]:
        """As the model reads them."""
        return self.varied.point(z).view(self.shape)

    @cached_property
    def _scale(self) -> Float[Tensor, " unknowns"]:
        """Mean square of what a unit of each unknown stands for."""
        zero = torch.zeros(self.varied.count, dtype=torch.float64, device=self.task.device)
        middle = self.varied.point(zero)

        def square(place: Tensor) -> Tensor:
            return (self.varied.point(zero.index_fill(0, place, 1.0)) - middle).square().mean()

        found: Tensor = vmap(square, chunk_size=COLUMNS)(torch.arange(len(zero), device=zero.device)[:, None])
        return found


def _by_own(plan: StagePlan, residual: Residual) -> Callable[[Images], Residual]:
    """Of what varies among the prior's images, whose J is whole."""
    return lambda _: plan.of_varied(residual)
