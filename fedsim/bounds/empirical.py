"""A lower confidence limit of a mechanism's ε from canaries: a test of the mechanism, no bound on what leaks.

Canaries are known vectors, some of which entered a release and some did not (Andrew et al. 2024, section 3). What the
release shows of each is Gaussian of one standard deviation, with another mean for those that entered. Two such
Gaussians are μ-GDP for μ = (difference of means) / standard deviation (Dong et al. 2022, definition 2.6).
"""

import math

import torch
from jaxtyping import Float, Float64
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


def directions(shape: tuple[int, ...], count: int, rng: torch.Generator) -> Float[Tensor, "count *shape"]:
    """Directions in a tensor, at right angles to the last bits, that a number common to it, a row or a column misses.

    Products of cosines over its rows and over all else of it, drawn without their means: noise that is drawn once and
    added to several numbers is not seen along them.

    Raises:
        ConfigError: the tensor has fewer.
    """
    rows, others = shape[0], math.prod(shape[1:])
    first = _cosines(rows)
    rest = torch.ones(1, 1, dtype=torch.float64) if len(shape) == 1 else _cosines(others)
    available = len(first) * len(rest)
    require("canaries", count, 1 <= count <= available, f"from 1 to {available:,} in a tensor of {tuple(shape)}")
    chosen = torch.randperm(available, generator=rng)[:count]
    signs = 2.0 * torch.randint(2, (count, 1, 1), generator=rng).double() - 1.0
    found = signs * first[chosen // len(rest), :, None] * rest[chosen % len(rest), None, :]
    return found.reshape(count, *shape).float()


def _cosines(size: int) -> Float64[Tensor, "kinds size"]:
    """Orthonormal cosines over so many places, all but the constant one."""
    kinds, places = torch.arange(1, size, dtype=torch.float64), torch.arange(size, dtype=torch.float64)
    return math.sqrt(2.0 / size) * torch.cos(math.pi * (places[None, :] + 0.5) * kinds[:, None] / size)
