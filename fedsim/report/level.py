"""What may be said of a defense, or of the lack of one, from counts alone: broken, open or not tested."""

from typing import Literal

from fedsim.report.chance import at_least_by_chance

Level = Literal["broken", "open", "not tested"]

BROKEN_BY_CHANCE = 0.05
"""One-sided: from this probability on, chance may have made the recognisable images."""


def level(certified: int, recognisable: int, guessed: int, images: int, ended: int) -> Level:
    """`broken`, `open` or `not tested`; no attack can show more than that an image leaks.

    Args:
        certified: different images that an attack vouches for, and that are not known to be wrong.
        recognisable: different images that an attack made recognisable, against the client's own or as the model saw
            them.
        guessed: those that the guess, which reads nothing of the update, makes as good as that (PSNR at least
            `RECOGNISABLE`).
        images: different images on which an attack ended.
        ended: attacks on images that came to an end with an image on some update; a refusal is not a test.
    """
    if not ended or not images:
        return "not tested"
    return "broken" if certified or by_chance(recognisable, guessed, images) < BROKEN_BY_CHANCE else "open"


def by_chance(recognisable: int, guessed: int, images: int) -> float:
    """Probability of as many recognisable images, were the attack no better than the guess: Fisher's exact test.

    With a guess that makes none recognisable it takes four of four, or five of twenty, to fall below 0.05.
    """
    return round(at_least_by_chance(recognisable, images, guessed, images), 12)  # 1/20 is no less than 0.05
