"""The number of dB from which of PSNR a picture counts as what."""

RECOGNISABLE = 20.0
"""No picture below it counts as recognisable; one above it does where it is above its guess too (`bar`)."""

GUESS_MARGIN = 1.0
"""dB over the guess from which an attack counts as having learned something."""

INDISTINGUISHABLE = 40.0
"""An eye sees no difference: what a defense takes of more than that helps nobody."""

EXACT = 60.0
"""A picture counts as exact: what rounding to 256 levels alone leaves is 58.9 dB. Keeps one exact picture from
outweighing all others in a mean."""

FEW_OBSERVED_IMAGES = 20
"""Different images below which a reader is told what they leave open."""

FEW_TEST_IMAGES = 100
"""Test images below which a reader is told how far chance moves an accuracy."""


def bar(guess_psnr: float | None) -> float:
    """The dB from which an image is recognisable of which a guess without any gradient reaches `guess_psnr`."""
    return RECOGNISABLE if guess_psnr is None else max(RECOGNISABLE, guess_psnr + GUESS_MARGIN)


def is_recognisable(psnr: float | None, guess_psnr: float | None) -> bool:
    """Whether a rebuilt picture shows more than its guess does, and enough of it."""
    return psnr is not None and psnr >= bar(guess_psnr)
