"""One mean of several modes, each counted by how likely it makes what was shared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attacks.optimization.second_order.posterior.mean import PosteriorMean, factors, posterior_mean
from attacks.optimization.second_order.residual import Residual
from attacks.optimization.second_order.steps.levenberg_marquardt import NormalEquations

SHARE = 0.05
"""Of all: what is less likely is left out."""
FEWEST_DRAWS = 20
"""Of a mode that counts little."""


def unlikely(normal: NormalEquations, weights: Float[Tensor, " rows"]) -> float:
    """-2 log of the probability of what was shared, by Laplace's method, but for the volume of the prior.

    Args:
        normal: of a residual in standard deviations, the prior's rows included, at a mode of it or near one.
        weights: one over the standard deviation of each shared number.
    """
    factor, inverse = factors(normal.matrix)
    short = float((inverse.T @ normal.slope).square().sum())  # of the least: the last steps were not taken
    counted = weights[weights > 0.0]
    return normal.cost - short + 2.0 * float(torch.linalg.slogdet(factor)[1] - counted.log().sum())


def shares(unlikely: Sequence[float]) -> list[float]:
    """How likely each is beside all, by -2 log of its probability; 0 of what is left out."""
    least = min(unlikely)
    each = [math.exp(0.5 * (least - one)) if math.isfinite(one) else 0.0 for one in unlikely]
    kept = [one if one >= SHARE * sum(each) else 0.0 for one in each]
    return [one / sum(kept) for one in kept]


def mixture(means: Sequence[PosteriorMean], shares: Sequence[float]) -> PosteriorMean:
    """Of means of modes, with the variance within and between them."""
    mean = torch.stack([share * one.mean for share, one in zip(shares, means, strict=True)]).sum(0)
    spread = [share * (one.variance + (one.mean - mean).square()) for share, one in zip(shares, means, strict=True)]
    accepted = sum(share * one.accepted for share, one in zip(shares, means, strict=True))
    return PosteriorMean(mean, torch.stack(spread).sum(0), accepted, sum(one.draws for one in means))


@dataclass(frozen=True)
class Modes:
    """Of the density exp(-‖r(x)‖²/2).

    Attributes:
        residual: in standard deviations, the prior's rows included.
        places: of the modes, or near them.
        columns: of J that are computed at once.
    """

    residual: Residual
    places: Sequence[Float[Tensor, " unknowns"]]
    columns: int

    @property
    def unlikely(self) -> float:
        """-2 log of the probability of what was shared, but for the volume of the prior."""
        least = min(self._each)
        return least - 2.0 * math.log(sum(math.exp(0.5 * (least - one)) for one in self._each))

    def mean(self, draws: int, rng: torch.Generator, progress: Callable[[int], None]) -> PosteriorMean:
        """Of all of them, see `posterior_mean`; of the less likely ones by fewer draws."""
        found, counted = list[PosteriorMean](), shares(self._each)
        for place, normal, share in zip(self.places, self._normals, counted, strict=True):
            if share:
                own = min(draws, max(FEWEST_DRAWS, round(share * draws)))
                found.append(posterior_mean(self.residual, place, normal.matrix, own, rng, progress))
        return mixture(found, [share for share in counted if share])

    @cached_property
    def _normals(self) -> list[NormalEquations]:
        return [self.residual.normal(place, self.columns) for place in self.places]

    @cached_property
    def _each(self) -> list[float]:
        return [unlikely(normal, self.residual.weights) for normal in self._normals]
