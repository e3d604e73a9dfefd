"""A level in words: how many images are recognisable, of how many, what the guess has, and what few images leave open.

Of a run and of a defense over several runs alike.
"""

from collections.abc import Mapping, Sequence

from fedsim.report.chance import accuracy_reach
from fedsim.report.leakage import Different, Leakage
from fedsim.report.level import BROKEN_BY_CHANCE, Level, by_chance
from fedsim.report.summary import AttackSummary
from fedsim.report.thresholds import GUESS_MARGIN, RECOGNISABLE
from fedsim.report.wording import below, count, decibels, listed

TAGS: Mapping[Level, str] = {"broken": "Broken", "open": "Open", "not tested": "Not tested"}

FEW_IMAGES = 20
"""Different images below which a reader is told what they leave open."""

FEW_TEST_IMAGES = 100
"""Test images below which a reader is told how far chance moves an accuracy."""


def judged(leakage: Leakage, rows: Sequence[AttackSummary], defenses: Sequence[str]) -> str:
    """What the attacks on images that ran to one show.

    Args:
        rows: of these attacks, strongest first.
    """
    counts, of = leakage.counts, of_images(leakage)
    told = []
    if leakage.scored and (counts.recognisable or not counts.as_seen):
        recognisable = f"The server rebuilt {counts.recognisable:,} of {of} recognisably ({_guess(counts)})"
        told.append(f"{recognisable}: {_best(counts, rows)}.")
    if counts.as_seen:
        them = "it" if counts.as_seen == 1 else "them"
        told.append(
            f"The server rebuilt {counts.as_seen:,} of {of} recognisably as the model saw {them}, changed by "
            f"{listed(list(defenses)) or 'a defense'} ({_guess(counts)}): {decibels(leakage.seen_psnr)} on average "
            f"against what it saw, {decibels(leakage.own_psnr)} against the client's own."
        )
    if counts.certified:
        told.append(f"{counts.certified:,} of {of} {'is' if counts.certified == 1 else 'are'} certified.")
        if not leakage.scored:
            told.append("Without audit their likeness to the originals was not measured.")
    elif counts.shown and counts.level == "open":
        chance = by_chance(counts.shown, counts.guessed, counts.images)
        told.append(f"Chance is not excluded (p = {chance:.2f}), and none is certified.")
    return " ".join(told)


def of_images(leakage: Leakage) -> str:
    """`9 different images` where some of them were observed in several updates."""
    repeated = leakage.different is not None and leakage.different < leakage.pictures
    return count(leakage.counts.images, "different image" if repeated else "image")


def few_images(counts: Different) -> list[str]:
    """What so few images leave open, as a sentence; nothing where there are enough, or none."""
    if not counts.ended or not 0 < counts.images < FEW_IMAGES:
        return []
    images = f"{count(counts.images, 'different image')} observed"
    hits = range(1, counts.images + 1)
    least = next((k for k in hits if by_chance(k, counts.guessed, counts.images) < BROKEN_BY_CHANCE), None)
    if least is None:
        return [f"{images}: too few for chance to be excluded without a certificate."]
    return [f"{images}: without a certificate it takes {least} recognisable ones to exclude chance."]


def few_test_images(accuracies: Sequence[float], test_images: int | None) -> str:
    """`4 test images: ± 35 points`; empty where there are enough, or no accuracy."""
    if not accuracies or test_images is None or test_images >= FEW_TEST_IMAGES:
        return ""
    reach = accuracy_reach(accuracies, test_images)
    return f"{count(test_images, 'test image')}: ± {100 * (reach or 0.0):.0f} points"


def _guess(counts: Different) -> str:
    return f"the guess: {counts.guessed:,}" if counts.guess_known else "no guess was recorded"


def _best(counts: Different, rows: Sequence[AttackSummary]) -> str:
    if counts.recognisable:
        among = f", the strongest of {len(rows)} attacks," if len(rows) > 1 else ""
        mean = decibels(rows[0].mean_leaked)
        return f"{rows[0].attack}{among} reached " + (
            "an exact copy of each" if mean == "exact" else f"{mean} on average"
        )
    best = max(rows, key=lambda row: -1.0 if row.max_psnr is None else row.max_psnr)
    result = f"the best result, {below(best.max_psnr, RECOGNISABLE)} by {best.attack}, "
    if best.max_psnr is not None and best.max_psnr >= RECOGNISABLE:
        return f"{result}is less than {GUESS_MARGIN:.0f} dB above its guess"
    return f"{result}stays below {RECOGNISABLE:.0f} dB"
