"""Reconstruction robustness: a theorem on what anybody can rebuild behind Gaussian differential privacy.

No prior is assumed. κ, how probable it is that somebody succeeds who sees nothing of the release, but all that is
reported beside it without noise, is the reader's assumption about images: the theorem says what becomes of it, and not
what it is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedsim.errors import require

KAPPAS = (1e-2, 1e-3, 1e-6)
"""Probabilities of success before a release, for which γ is printed."""

PROVEN_KAPPA, PROVEN_GAMMA = 1e-3, 0.05
"""A defense is proven where who would succeed with this κ does so with at most this γ."""


@dataclass(frozen=True)
class GaussianDP:
    """What a client has released so far is μ-GDP for one unit, present or absent (Dong et al. 2022, definition 2.6).

    Attributes:
        mu: √Σμ_t² over the releases that the unit entered; ∞: no noise.
        releases: how many those are.
        unit: `image`, or `update` for all that a client shares in a round.
        delta: at which the defense reports an ε.
        because: why it holds for what is really done: which batches, which noise.
        copies: of one image that the client holds, at most, which μ counts.
    """

    mu: float
    releases: int
    unit: str
    delta: float
    because: str
    copies: int = 1

    @property
    def proven(self) -> bool:
        """Whether γ is small enough, at the κ of `PROVEN_KAPPA`, after all these releases."""
        return blow_up(PROVEN_KAPPA, self.mu) <= PROVEN_GAMMA


def blow_up(kappa: float, mu: float) -> float:
    """γ = Φ(Φ⁻¹(κ) + μ): who would succeed with probability κ before succeeds with at most γ after.

    A theorem for a μ-GDP mechanism (the blow-up function of Hayes et al. 2023; Dong et al. 2022, definition 2.6):
    sup P(E) over events with Q(E) ≤ κ, where P is the release with the unit and Q the one without. Reached where P and
    Q are Gaussians μ standard deviations apart.

    Raises:
        ConfigError: κ is no probability between 0 and 1, or μ is negative.

    >>> round(blow_up(0.1, 1.0), 3)
    0.389
    """
    _check(kappa)
    require("mu", mu, mu >= 0, "0 or more")
    from scipy.special import ndtr, ndtri  # a defense is built without it

    return float(ndtr(ndtri(kappa) + mu))


def composed(mus: Iterable[float]) -> float:
    """μ of several releases, adaptively chosen too: √Σμ_t² (Dong et al. 2022, corollary 3.3).

    >>> composed([3.0, 4.0])
    5.0
    """
    return math.sqrt(math.fsum(mu * mu for mu in mus))


def with_copies(proven: GaussianDP, copies: int) -> GaussianDP:
    """Of an image that stands so often among a client's, present with all its copies or absent with them.

    All in one batch they move its sum of clipped gradients so many times as far: μ is so many times that of one, as
    after copies² releases of it. Spread over several batches they tell less, and this is a bound.

    >>> with_copies(GaussianDP(0.125, 1, "image", 1e-5, "each image is clipped"), 16).mu
    2.0
    """
    require("copies", copies, copies >= 1, "1 or more")
    if copies == 1:
        return proven
    because = f"{proven.because}, and {copies:,} of them are equal"
    return replace(proven, mu=copies * proven.mu, because=because, copies=copies)


def together(several: Sequence[GaussianDP]) -> GaussianDP:
    """Releases of one image by several clients, whose noise is independent: μ² and releases add up."""
    most = max(several, key=lambda one: one.mu)
    if len(several) == 1:
        return most
    because = f"{most.because}; {len(several):,} clients hold one image"
    return replace(
        most, mu=composed(one.mu for one in several), releases=sum(one.releases for one in several), because=because
    )


def of_epsilon(kappa: float, epsilon: float, delta: float) -> float:
    """e^ε·κ + δ, at most 1: the weaker bound that (ε, δ) alone gives, for whatever mechanism.

    >>> round(of_epsilon(0.01, 1.0, 1e-5), 4)
    0.0272
    """
    _check(kappa)
    require("epsilon", epsilon, epsilon >= 0, "0 or more")
    exponent = epsilon + math.log(kappa)
    return 1.0 if exponent >= 0 else min(1.0, math.exp(exponent) + delta)


def releases_within(mu: float, kappa: float = PROVEN_KAPPA, gamma: float = PROVEN_GAMMA) -> float:
    """How many releases of this μ each keep γ at most so large: the T of Φ(Φ⁻¹(κ) + √T·μ) ≤ γ; ∞ for μ = 0.

    >>> [releases_within(1.0), releases_within(0.1)]
    [2, 208]
    """
    _check(kappa)
    _check(gamma)
    from scipy.special import ndtri

    room = float(ndtri(gamma) - ndtri(kappa))
    if mu == 0:
        return math.inf if room >= 0 else 0
    return 0 if room < 0 or mu == math.inf else math.floor((room / mu) ** 2)


def _check(probability: float) -> None:
    require("kappa", probability, 0 < probability < 1, "a probability between 0 and 1")
