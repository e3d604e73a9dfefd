"""A lower confidence limit of a mechanism's ε from canaries: a test of the mechanism, no bound on what leaks.

Canaries are known vectors, some of which entered a release and some did not (Andrew et al. 2024, section 3). What the
release shows of each is Gaussian of one standard deviation, with another mean for those that entered. Two such
Gaussians are μ-GDP for μ = (difference of means) / standard deviation (Dong et al. 2022, definition 2.6).
"""

import math

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import chdtri, nctdtr
from torch import Tensor

from fedsim.errors import require

CONFIDENCE = 0.999
"""One-sided."""


def mu_lower(inside: Float[Tensor, " k"], outside: Float[Tensor, " m"], confidence: float = CONFIDENCE) -> float:
    """The lower end of a one-sided interval for μ = (mean inside - mean outside) / standard deviation, at least 0.

    Exact for independent Gaussians of one standard deviation: Student's t of two samples with non-centrality
    μ·√(km/(k+m)) (Hedges 1981).

    Args:
        inside: what the release shows of each canary that entered, larger than others in the mean.
        outside: of each that did not.

    Raises:
        ConfigError: fewer than two of either, or a confidence that is none.
    """
    k, m = len(inside), len(outside)
    require("canaries", k + m, k >= 2 and m >= 2, "at least two inside and two outside")
    require("confidence", confidence, 0.5 <= confidence < 1, "a probability from 0.5 to 1")
    freedom = k + m - 2
    apart, spread = _apart(inside, outside)
    scale = math.sqrt(k * m / (k + m))
    if spread == 0.0:
        return math.inf if apart > 0 else 0.0
    t = apart / spread * scale
    if nctdtr(freedom, 0.0, t) <= confidence:
        return 0.0
    if t > 1e4:  # beyond floating point: the spread alone is uncertain then, and follows a χ distribution
        return t / scale * math.sqrt(chdtri(freedom, confidence) / freedom)
    return float(brentq(lambda found: nctdtr(freedom, found, t) - confidence, 0.0, t + 1.0)) / scale


def mu_estimate(inside: Float[Tensor, " k"], outside: Float[Tensor, " m"]) -> float:
    """The point estimate of the same; 0 where those inside do not show more."""
    apart, spread = _apart(inside, outside)
    return max(0.0, apart / spread) if spread > 0 else (math.inf if apart > 0 else 0.0)


def _apart(inside: Float[Tensor, " k"], outside: Float[Tensor, " m"]) -> tuple[float, float]:
    """By how much the mean inside is larger, and the standard deviation that both have in common."""
    one, other = inside.double(), outside.double()
    freedom = max(1, len(one) + len(other) - 2)
    squares = (one - one.mean()).square().sum() + (other - other.mean()).square().sum()
    return float(one.mean() - other.mean()), math.sqrt(float(squares / freedom))


def unit_canaries(count: int, dimension: int, rng: torch.Generator) -> Float[Tensor, "count dimension"]:
    """Random directions; two of them are nearly orthogonal where the dimension is large."""
    drawn = torch.randn(count, dimension, generator=rng)
    found: Tensor = drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    return found
