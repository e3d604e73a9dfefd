"""Reconstruction robustness of a subsampled Gaussian mechanism over many steps, from its privacy loss distribution.

A theorem for *Poisson* samples alone: each step takes each image by itself with probability q. fedsim's clients do not:
their batches are pieces of a permutation, for which this is only the figure that papers quote.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from fedsim.bounds.robustness import blow_up
from fedsim.errors import require

LOSS_ERROR = 0.01
"""By how much a privacy loss may be off; it is added, so that the result stays a bound."""

SURE = 0.999
"""γ above which what taking every image gives is said instead: no further from it than 1. Losses take long there."""


@lru_cache(maxsize=256)
def subsampled_blow_up(kappa: float, noise_multiplier: float, rate: float, steps: int) -> float:
    """An upper bound of γ = sup P(E) over events with Q(E) ≤ κ, after `steps` steps that each take the image with q.

    P(E) ≤ e^ε·κ + δ(ε) for every real ε, and the least of these is γ itself (Dong et al. 2022, proposition 2.12).
    δ(ε) is that of P against Q, the release with the image against the one without, from the composed privacy loss
    (Gopi et al. 2021, by Opacus) with its errors added.

    Args:
        kappa: success before, between 0 and 1.
        noise_multiplier: σ, the noise on the sum in units of the clipping norm.
        rate: q.

    Raises:
        ConfigError: an argument is out of its range.
    """
    require("noise_multiplier", noise_multiplier, 0 < noise_multiplier < math.inf, "a positive number")
    require("rate", rate, 0 < rate <= 1, "a share above 0, at most 1")
    require("steps", steps, steps >= 1, "at least 1")
    full = blow_up(kappa, math.sqrt(steps) / noise_multiplier)
    if rate == 1.0 or _by_sum(kappa, noise_multiplier, rate, steps) > SURE:
        return full
    delta_error = kappa / 1000
    losses, masses = _losses(noise_multiplier, rate, steps, delta_error)
    # δ(ε) = Σ p(l)·(1 - e^(ε-l))⁺ on the grid itself; between grid points the bound is no lower than at one of them.
    above = np.flip(np.flip(masses).cumsum())
    weighed = np.flip(np.flip(masses * np.exp(-losses)).cumsum())
    deltas = above - np.exp(losses) * weighed
    bounds = np.exp(losses + LOSS_ERROR) * kappa + deltas + delta_error
    return float(min(full, bounds.min(), 1.0))


def _by_sum(kappa: float, noise_multiplier: float, rate: float, steps: int) -> float:
    """A lower bound of γ: of the event that the sum of the releases is large, whose mean grows by 1 when it is taken.

    How often the image is taken is binomial; all but the rarest counts are summed.
    """
    mean, deviation = rate * steps, math.sqrt(rate * (1.0 - rate) * steps)
    low, high = max(0, math.floor(mean - 8.0 * deviation - 8.0)), min(steps, math.ceil(mean + 8.0 * deviation + 8.0))
    counts = np.arange(low, high + 1)
    passed = ndtr(ndtri(kappa) + counts / (noise_multiplier * math.sqrt(steps)))
    return float((binom.pmf(counts, steps, rate) * passed).sum())


def _losses(
    noise_multiplier: float, rate: float, steps: int, delta_error: float
) -> "tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]":
    """Values of log(dP/dQ) under P, and their probabilities."""
    # Opacus loads much of torch.distributed, and only this needs it.
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    found = accountant._get_dprv(eps_error=LOSS_ERROR, delta_error=delta_error)
    return np.asarray(found.domain.ts, dtype=np.float64), np.asarray(found.pmf, dtype=np.float64).clip(min=0.0)
