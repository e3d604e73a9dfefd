"""What may be said of a defense, or of the lack of one: broken, open or not tested from counts, proven by a theorem."""

from typing import Literal

from fedsim.metrics.chance import at_least_by_chance, leads_by_chance

Level = Literal["broken", "proven", "open", "not tested"]
"""In this order: what an attack shows outweighs what a theorem says of a mechanism that may not be what it seems."""

BROKEN_BY_CHANCE = 0.05
"""One-sided: from this probability on, chance may have made the recognisable images."""


def level(
    certified: int,
    recognisable: int,
    guessed: int,
    independent: int,
    ended: int,
    pairs: tuple[int, int] | None = None,
) -> Level:
    """`broken`, `open` or `not tested`; no attack can show more than that an image leaks.

    Args:
        certified: different images that an attack vouches for, and that are not known to be wrong.
        recognisable: of `independent` different images those that an attack made recognisable (PSNR at least
            `RECOGNISABLE`, and `GUESS_MARGIN` above the guess), against the client's own or as the model saw them.
        guessed: those that an answer without the update makes recognisable by the same bar. The guess itself lies
            below its own bar, so this counts what attacks that read nothing of the update reach.
        independent: different images on which an attack ended, and no more of them than updates.
        ended: attacks on images that came to an end with an image on some update; a refusal is not a test.
        pairs: as `by_chance`.
    """
    if not ended or not independent:
        return "not tested"
    chance = by_chance(recognisable, guessed, independent, pairs)
    return "broken" if certified or chance < BROKEN_BY_CHANCE else "open"


def by_chance(recognisable: int, guessed: int, images: int, pairs: tuple[int, int] | None = None) -> float:
    """Probability of as many recognisable images, were the attack no better than what reads nothing: Fisher's test.

    Where that makes none recognisable it takes four of four, or five of twenty, to fall below 0.05.

    Args:
        pairs: updates in which more is recognisable than without the update, and those in which not as much is. Each
            counts on one side alone, so that both shares exclude each other: Fisher's test holds too little for chance
            there, and the larger of its probability and the sign test's counts.
    """
    fisher = at_least_by_chance(recognisable, images, guessed, images)
    sign = 0.0 if pairs is None else leads_by_chance(*pairs)
    return round(max(fisher, sign), 12)  # 1/20 is no less than 0.05


def with_theorem(counted: Level, proven: bool, rebuilt: int) -> Level:
    """The level from counts, where a theorem holds of the whole run besides.

    Args:
        proven: by reconstruction robustness (`fedsim.report.run.bounds.records.proof_of`), and by nothing else.
        rebuilt: different images recognised beyond those that a guess makes so; one is at odds with the theorem.
    """
    return "proven" if proven and counted != "broken" and rebuilt <= 0 else counted
