"""(ε, δ) of Gaussian noise: exact where every step counts, Rényi's bound where Poisson sampling is assumed.

A closer one of Poisson samples is in `defenses.privacy.sampled`.

All here is about figures: noise comes from a seeded generator in floating point, which is no deployment's guarantee.
"""

import math
import warnings
from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

ORDERS = (
    *(1 + x / 100 for x in (1, 2, 5)),
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 64),
    96,
    128,
    256,
    512,
    1024,
)
"""Rényi orders."""


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact δ(ε) of Gaussian noise of standard deviation Δ/μ on a query of L2 sensitivity Δ.

    Balle and Wang 2018, theorem 8: δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ). Steps compose by their squares:
    μ² = Σ μ_t² (Dong et al. 2022, corollary 3.3).
    """
    if mu == 0.0:
        return 0.0
    from scipy.special import log_ndtr

    above, below = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    # The second term is at most the first, so its exponent cannot overflow.
    return math.exp(above) - math.exp(min(epsilon + below, above))


@lru_cache(maxsize=1024)
def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε for which the noise of `gaussian_delta` is (ε, δ)-private."""
    if mu == math.inf:
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    # δ(ε) < Φ(μ/2 - ε/μ) < exp(-(ε/μ - μ/2)²/2), which is δ here:
    highest = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))
    from scipy.optimize import brentq

    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, highest, xtol=1e-9))


@lru_cache(maxsize=1024)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ, so the least noise Δ/μ, that is (ε, δ)-private: the analytic Gaussian mechanism."""
    from scipy.optimize import brentq

    highest = 1.0
    while gaussian_delta(epsilon, highest) <= delta:
        highest *= 2
    return float(brentq(lambda mu: gaussian_delta(epsilon, mu) - delta, 0.0, highest, xtol=1e-12))


@lru_cache(maxsize=1024)
def sampled_gaussian_rdp(noise_multiplier: float, rate: float) -> Float64[Tensor, " orders"]:
    """Rényi divergences at `ORDERS` of one step on a Poisson sample of rate `rate` (Mironov et al. 2019), by Opacus.

    Steps compose by adding these up. Neighbours differ by one example more or less.
    """
    # Opacus loads much of torch.distributed, and only this accountant needs it.
    from opacus.accountants.analysis.rdp import compute_rdp

    divergences = compute_rdp(q=rate, noise_multiplier=noise_multiplier, steps=1, orders=list(ORDERS))
    return torch.as_tensor(divergences, dtype=torch.float64)


def rdp_epsilon(rdp: Float64[Tensor, " orders"], delta: float) -> float:
    """The ε at δ that Rényi divergences at `ORDERS` imply (Balle et al. 2020, theorem 21), by Opacus."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    with warnings.catch_warnings():
        # At the first or last order the bound is loose, and still a bound.
        warnings.filterwarnings("ignore", message="Optimal order is the")
        epsilon, _ = get_privacy_spent(orders=list(ORDERS), rdp=rdp.numpy(), delta=delta)
    return max(0.0, float(epsilon))
