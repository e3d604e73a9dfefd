"""Reconstruction robustness in words: each with its numbers and its assumption in one sentence."""

import math

from fedsim.bounds.robustness import PROVEN_GAMMA, PROVEN_KAPPA, GaussianDP, blow_up, releases_within

REPORTED = (
    "the training loss, dal_loss, the numbers of images, of copies of one, of clipped ones and of skipped steps, and "
    "loss and accuracy where clients evaluate, all reported as they are"
)
"""What leaves a client without noise, whatever its defense."""

OUTSIDE = (
    f"Outside of it: {REPORTED} and so known before; noise is a simulation's. Where images are clipped one by one, "
    "equal images are one image: k copies in a batch count as k² releases. Images nearly alike are not counted so, and "
    "tell of each other as copies do."
)
"""What a private defense does not cover. The theorem holds beside it: κ is of somebody who knows these already."""


def theorem_sentence(proven: GaussianDP) -> str:
    """What becomes of a success of `PROVEN_KAPPA`.

    >>> print(theorem_sentence(GaussianDP(1.0, 1, "image", 1e-5, "each image is clipped")))
    Whoever would rebuild an image with probability 0.001 before does so with at most 0.019 after this one release, \
whatever else is known or done: noise makes it 1-Gaussian-DP (each image is clipped). The probability before is an \
assumption about images, of somebody who knows all reported without noise.
    """
    after = "this one release" if proven.releases == 1 else f"these {proven.releases:,} releases"
    gamma = probability(blow_up(PROVEN_KAPPA, proven.mu))
    them = "it" if proven.releases == 1 else "them together"
    return (
        f"Whoever would rebuild an image with probability {PROVEN_KAPPA:g} before does so with at most {gamma} after "
        f"{after}, whatever else is known or done: noise makes {them} {rounded_up(proven.mu):g}-Gaussian-DP "
        f"({proven.because}). The probability before is an assumption about images, of somebody who knows all reported "
        "without noise."
    )


def rounded_up(bound: float) -> float:
    """To three digits, never less.

    >>> rounded_up(2**0.5)
    1.42
    """
    if bound <= 0.0 or not math.isfinite(bound):
        return bound
    digits = 2 - math.floor(math.log10(bound))
    return math.ceil(bound * 10.0**digits - 1e-9) / 10.0**digits


def rounded_down(bound: float) -> float:
    """To three digits, never more.

    >>> rounded_down(3**0.5)
    1.73
    >>> rounded_down(1.988)
    1.98
    """
    if bound <= 0.0 or not math.isfinite(bound):
        return bound
    digits = 2 - math.floor(math.log10(bound))
    return math.floor(bound * 10.0**digits + 1e-9) / 10.0**digits


def lasting(proven: GaussianDP) -> str:
    """For how many such releases that stays at most `PROVEN_GAMMA`, and what is outside of it."""
    if proven.mu == 0 or proven.releases < 1:
        return OUTSIDE
    lasts = releases_within(proven.mu / math.sqrt(proven.releases))
    if lasts == 0:
        return f"No such release keeps it at or below {PROVEN_GAMMA:g}. {OUTSIDE}"
    return f"{lasts:,.0f} such releases keep it at or below {PROVEN_GAMMA:g}, and no more. {OUTSIDE}"


def probability(value: float) -> str:
    """As a reader takes it in: rounded up, so that no bound is said smaller than it is."""
    if value >= 1.0:
        return "1"
    digits = max(2, 1 - math.floor(math.log10(value)))
    shown = math.ceil(value * 10**digits - 1e-9) / 10**digits
    return f"{shown:.{digits}f}" if value >= 1e-3 else f"{shown:.1e}"
