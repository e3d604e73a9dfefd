"""ε of Poisson-sampled Gaussian noise by composing privacy losses numerically (Gopi et al. 2021), with Opacus' parts.

Up to ten times below Rényi's bound where few images are sampled. Losses of both neighbours are composed, that with the
image against that without it and the other way round: of which the ε is larger is not proven.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from defenses.privacy.accounting import rdp_epsilon, sampled_gaussian_rdp

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

MOST_POINTS = 2**19
"""Of a grid of losses: a second or so. More are not composed."""
MOST_LOSS = 700.0
"""The largest x, rounded down, for which e^x is a float64: sums of losses beyond it would be cut off."""
MOST_RATES = 8
ROUNDING = 1e-15
"""Of a step's probabilities in float64."""
GRID = 20_001
"""Points of the integral of the mean loss."""


@lru_cache(maxsize=1024)
def composed_epsilon(noise_multiplier: float, rates: tuple[float, ...], counts: tuple[int, ...], delta: float) -> float:
    """An ε at δ that holds for so many steps at each rate, too large by at most 2 % of Rényi's, or 0.02.

    Infinite where this does not say: a grid of losses that is too large or too coarse, or a δ near float64's rounding.
    """
    # Opacus loads much of torch.distributed, and only this accountant needs it.
    from opacus.accountants.analysis.prv import Domain, compose_heterogeneous, discretize

    delta_error, steps = delta / 1000, sum(counts)
    if len(rates) > MOST_RATES or steps * ROUNDING > delta_error:
        return math.inf
    each = [sampled_gaussian_rdp(noise_multiplier, rate) for rate in rates]
    whole = torch.stack([count * one for count, one in zip(counts, each, strict=True)]).sum(dim=0)
    error = min(0.5, max(0.01, rdp_epsilon(whole, delta) / 100))
    # Gopi et al. 2021, remark 5.6: beyond these ends are less than the errors allow.
    ends = [rdp_epsilon(whole, delta_error / 4), *(rdp_epsilon(one, delta_error / (8 * steps)) for one in each)]
    limit, width = max(*ends, error) + 3, error / math.sqrt(steps * math.log(12 / delta_error) / 2)
    if 2 * limit / width > MOST_POINTS or limit > MOST_LOSS:
        return math.inf
    largest = 0.0
    for present in (True, False):
        try:
            grid = Domain.create_aligned(-limit, limit, width)
            cut = [Truncated(SampledLoss(noise_multiplier, q, present), grid.t_min, grid.t_max) for q in rates]
            composed = compose_heterogeneous([discretize(one, grid) for one in cut], list(counts))
        except RuntimeError:  # Opacus finds the grid too coarse
            return math.inf
        largest = max(largest, _epsilon(composed.domain.ts, composed.pmf, delta - delta_error))
    return largest + error


def _epsilon(losses: "Values", masses: "Values", delta: float) -> float:
    """The first ε ≥ 0 of the grid from which on E(1 - e^(ε - l))⁺ is δ at most."""
    positive = losses >= 0
    losses, masses = losses[positive], masses[positive]
    above = np.flip(np.flip(masses).cumsum())
    weighed = np.flip(np.flip(masses * np.exp(-losses)).cumsum())
    over = np.flatnonzero(above - np.exp(losses) * weighed > delta)
    if not len(over):
        return float(losses[0])
    return float(losses[over[-1] + 1]) if over[-1] + 1 < len(losses) else math.inf


class SampledLoss:
    """log(dP/dQ) under P of one step; P is (1 - q) N(0, σ²) + q N(1, σ²) and Q is N(0, σ²), or the other way round.

    Args:
        present: whether P has the image.
    """

    def __init__(self, noise_multiplier: float, sample_rate: float, present: bool = True) -> None:
        self.noise_multiplier, self.sample_rate, self.present = noise_multiplier, sample_rate, present

    def cdf(self, loss: "Values | float") -> "Values":
        """The probability of a loss of at most this."""
        from scipy.special import ndtr

        sigma, q = self.noise_multiplier, self.sample_rate
        ratio = np.exp(loss if self.present else np.negative(loss)) - (1 - q)
        with np.errstate(divide="ignore"):
            x = np.where(ratio > 0, sigma**2 * np.log(np.where(ratio > 0, ratio, 1.0) / q) + 0.5, -np.inf)
        if self.present:
            return np.asarray((1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma))
        return np.asarray(ndtr(-x / sigma))

    def mean(self, least: float, most: float) -> float:
        """Of the losses between the two, by the trapezoid rule."""
        sigma, q = self.noise_multiplier, self.sample_rate
        x = np.linspace(-12 * sigma, 1 + 12 * sigma, GRID)
        exponent = (2 * x - 1) / (2 * sigma**2)
        absent = np.exp(-(x**2) / (2 * sigma**2))
        with np.errstate(divide="ignore"):
            loss = np.logaddexp(np.log1p(-q), math.log(q) + exponent)
        if self.present:
            weight = (1 - q) * absent + q * np.exp(-((x - 1) ** 2) / (2 * sigma**2))
        else:
            loss, weight = -loss, absent
        weight = np.where((loss >= least) & (loss <= most), weight, 0.0)
        return float((weight * loss).sum() / weight.sum())


class Truncated:
    """A loss, given that it is between the two ends of a grid."""

    def __init__(self, loss: SampledLoss, least: float, most: float) -> None:
        self._loss, self._ends = loss, (least, most)
        self._below, above = (float(loss.cdf(end)) for end in self._ends)
        self._mass = above - self._below

    def cdf(self, loss: "Values") -> "Values":
        return ((self._loss.cdf(np.clip(loss, *self._ends)) - self._below) / self._mass).clip(0.0, 1.0)

    def mean(self) -> float:
        return self._loss.mean(*self._ends)
