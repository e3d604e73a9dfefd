"""One mean of several modes, each counted by how likely it makes what was shared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attacks.optimization.second_order.posterior.mean import PosteriorMean, factors, posterior_mean
from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.steps.levenberg_marquardt import NormalEquations

SHARE = 0.05
"""Of all: what is less likely is left out."""
FEWEST_DRAWS = 20
"""Of a mode that counts little."""


def unlikely(residual: Residual, place: Float[Tensor, " unknowns"], normal: NormalEquations) -> float:
    """-2 log of the probability of what was shared, by Laplace's method, but for the volume of the prior.

    Args:
        residual: in standard deviations, the prior's rows included.
        place: of a mode, or near one: the last step towards it is taken where it leads there.
        normal: there.
    """
    factor, inverse = factors(normal.matrix)
    step = inverse @ (inverse.T @ normal.slope)
    cost = min(normal.cost, float(residual(place - step).square().sum().nan_to_num(nan=math.inf)))
    counted = residual.weights[residual.weights > 0.0]
    return cost + 2.0 * float(torch.linalg.slogdet(factor)[1] - counted.log().sum())


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
        for place, share in zip(self.places, counted, strict=True):
            if share:
                own, normal = min(draws, max(FEWEST_DRAWS, round(share * draws))), self._normal(place)
                found.append(posterior_mean(self.residual, place, normal.matrix, own, rng, progress))
        return mixture(found, [share for share in counted if share])

    def _normal(self, place: Float[Tensor, " unknowns"]) -> NormalEquations:
        return self.residual.normal(place, self.columns)

    @cached_property
    def _each(self) -> list[float]:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return [unlikely(self.residual, place, self._normal(place)) for place in self.places]
