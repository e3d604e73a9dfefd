"""From how many dB of PSNR a picture counts as what."""

RECOGNISABLE = 20.0
"""No picture below it counts as recognisable; one above it does where it is above its guess too (`bar`)."""

GUESS_MARGIN = 1.0
"""dB over the guess from which an attack counts as having learned something."""

INDISTINGUISHABLE = 40.0
"""An eye sees no difference: what a defense takes of more than that helps nobody."""

EXACT = 60.0
"""A picture counts as exact: what rounding to 256 levels alone leaves is 58.9 dB. Keeps one exact picture from
outweighing all others in a mean."""

ROUNDING = 120.0
"""dB from which pictures differ by no more than floating-point numbers do."""

EIGHT_BITS = 58.0
"""dB that a picture reaches which is right up to rounding to 256 levels; that leaves 58.9."""

FEW_OBSERVED_IMAGES = 20
"""Different images below which a reader is told what they leave open."""

FEW_TEST_IMAGES = 100
"""Test images below which a reader is told how far chance moves an accuracy."""

FEW_SEEDS = 3
"""Trainings below which accuracies that chance explains are not said to be alike: Student's t of two seeds is 14
standard errors, and one seed tells nothing of others."""


def bar(guess_psnr: float | None) -> float:
    """The dB from which an image is recognisable of which a guess without any gradient reaches `guess_psnr`."""
    return RECOGNISABLE if guess_psnr is None else max(RECOGNISABLE, guess_psnr + GUESS_MARGIN)


def is_recognisable(psnr: float | None, guess_psnr: float | None) -> bool:
    """Whether a rebuilt picture shows more than its guess does, and enough of it."""
    return psnr is not None and psnr >= bar(guess_psnr)


def vouched(promised: float | None) -> float:
    """The dB below which a picture proves its certificate wrong.

    So many as it promises, or else what rounding to 8 bits leaves. An error that an eye sees is wrong whatever was
    promised, one that floating-point numbers leave never is.
    """
    return EIGHT_BITS if promised is None else max(INDISTINGUISHABLE, min(promised, ROUNDING))
