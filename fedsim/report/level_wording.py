"""A level in words: how many images are recognisable, and without the update, of how many, and what few leave open.

Of a run and of a defense over several runs alike.
"""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean

from fedsim.metrics.chance import accuracy_reach
from fedsim.report.level import BROKEN_BY_CHANCE, Level, by_chance
from fedsim.report.run.images.counts import Counts
from fedsim.report.run.images.leakage import Leakage
from fedsim.report.run.summary import AttackSummary
from fedsim.report.thresholds import FEW_OBSERVED_IMAGES, FEW_SEEDS, FEW_TEST_IMAGES, GUESS_MARGIN, RECOGNISABLE
from fedsim.report.wording import count, graded, listed, percent

TAGS: Mapping[Level, str] = {"broken": "Broken", "proven": "Proven", "open": "Open", "not tested": "Not tested"}


def judged(leakage: Leakage, rows: Sequence[AttackSummary], defenses: Sequence[str]) -> str:
    """What the attacks on images that ran to one show.

    Args:
        rows: of these attacks, strongest first.
        defenses: what may have changed the images.
    """
    counts, of = leakage.counts, of_images(leakage)
    sentences = []
    if leakage.scored and (counts.own or not counts.as_seen):
        recognisable = f"The server rebuilt {counts.own:,} of {of} recognisably ({without_update(counts)})"
        sentences.append(f"{recognisable}: {_best(counts, rows)}.")
    if counts.as_seen:
        them = "it" if counts.as_seen == 1 else "them"
        sentences.append(
            f"The server rebuilt {counts.as_seen:,} of {of} recognisably as the model saw {them}, changed by "
            f"{listed(list(defenses), 'or') or 'the client'} ({without_update(counts)}): {graded(leakage.seen_psnr)} "
            f"on average against what it saw, {graded(leakage.own_psnr)} against the client's own."
        )
    if counts.certified:
        sentences.append(f"{counts.certified:,} of {of} {'is' if counts.certified == 1 else 'are'} certified.")
        if not leakage.scored:
            sentences.append("There are no originals to compare with.")
    elif counts.unheld and counts.level == "open":
        sentences.append("Without a guess on record chance cannot be told, and none is certified.")
    elif counts.recognisable and counts.level == "open":
        sentences.append(_too_few(counts))
    return " ".join([*sentences, *_beside(counts)])


def of_images(leakage: Leakage) -> str:
    """`9 different images` where some of them were observed in several updates."""
    repeated = leakage.different is not None and leakage.different < leakage.pictures
    return count(leakage.counts.images, "different image" if repeated else "image")


def few_images(counts: Counts) -> list[str]:
    """What so few images leave open, as a sentence; nothing where there are enough, or none, or one is certified."""
    if counts.certified or not counts.ended or not 0 < counts.independent < FEW_OBSERVED_IMAGES:
        return []
    images = f"{count(counts.images, 'different image')}{_of_updates(counts)} observed"
    if not counts.guess_known:
        return [f"{images}: few, and no guess to tell chance by."]
    least, guessed = _least(counts), counts.tested[1]
    if least is None and guessed:
        many = "all" if guessed == counts.independent else f"{guessed:,}"
        as_well = f"as many come out of {many} of them" if counts.by_update else f"{many} of them come out as well"
        as_well += " or may" if counts.unguessed else ""
        return [f"{images}: without the update {as_well}, so that only a certificate tells."]
    if least is None:
        enough = next(n for n in itertools.count(1) if by_chance(n, 0, n) < BROKEN_BY_CHANCE)
        many = f"{enough} updates, each with" if counts.by_update else f"{enough}, all"
        images_of = " images" if counts.by_update else ""
        return [f"{images}: without a certificate it takes at least {many} recognisable{images_of}, to say broken."]
    more = "more recognisable ones than without it" if counts.pairs else "recognisable ones"
    many = f"{count(least, 'update')} with {more}" if counts.by_update else f"{least} recognisable ones"
    return [f"{images}: without a certificate it takes {many} to say broken."]


def few_test_images(accuracies: Sequence[float], test_images: int | None) -> str:
    """`4 test images: ± 35 points`, by them alone; empty where there are enough, or no accuracy."""
    reach = accuracy_reach(accuracies, test_images)
    if accuracies and reach is None:
        return "an unknown number of test images: how far chance moves it is not known"
    if not accuracies or test_images is None or test_images >= FEW_TEST_IMAGES:
        return ""
    alone = accuracy_reach([fmean(accuracies)], test_images) or 0.0
    return f"{count(test_images, 'test image')}: ± {100 * alone:.0f} points"


def few_seeds(*accuracies: Sequence[float]) -> str:
    """`2 seeds are too few to tell`, of several figures by the one of fewest seeds; empty where there are enough."""
    least = min(map(len, accuracies))
    return f"{count(least, 'seed')} {'is' if least == 1 else 'are'} too few to tell" if least < FEW_SEEDS else ""


def nothing_learned(who: str, guess: float | None) -> str:
    """What to say of runs whose accuracies chance explains by a guess, and are compared."""
    always = f"always naming the commonest class, which is right for {percent(guess)}"
    return f"{who} is clearly more accurate than {always}, so their difference in accuracy says nothing"


def without_update(counts: Counts) -> str:
    """What an answer that reads nothing of the update makes recognisable, by the same bar."""
    if not counts.guess_known:
        return "no guess was recorded"
    unknown = f", unknown of {counts.unguessed:,} more" if counts.unguessed else ""
    return f"without the update: {counts.guessed:,} of {counts.images:,}{unknown}"


def _least(counts: Counts) -> int | None:
    """Of so many images, or updates, what the level *broken* takes; None where not even all of them would do.

    Where the sign test counts, of updates with more recognisable ones than without them, the others as they are.
    """
    guessed, of, pairs = counts.tested[1], counts.independent, counts.pairs
    behind = pairs[1] - pairs[0] if pairs else 0
    alike = max(counts.tested[0] - pairs[0], 0) if pairs else 0  # as many with the update as without: they leak too
    for k in range(1, of - behind + 1):
        leaking = k + min(alike, of - behind - k)
        if by_chance(leaking, guessed, of, (k, k + behind) if pairs else None) < BROKEN_BY_CHANCE:
            return k
    return None


def _of_updates(counts: Counts) -> str:
    """Where the level counts updates: those of the same images as one."""
    return f" of {count(counts.updates or 0, 'different update')}" if counts.by_update else ""


def _too_few(counts: Counts) -> str:
    """What lacks for the level *broken*: it counts images, whatever their dB. Of few `few_images` says the rest."""
    least, takes, (shown, guessed) = _least(counts), "", counts.tested
    units = "updates" if counts.by_update else "images"
    if least is not None:
        lacking = "Images of too few updates" if counts.by_update else "Too few of them"
        of = f"{counts.independent:,}{' updates' if counts.by_update else ''}"
        of += ", with more than without it" if counts.pairs else ""
        takes = f": it takes {least} of {of}" if counts.independent >= FEW_OBSERVED_IMAGES else ""
    else:
        lacking = "Too few more than without the update" if guessed else f"Too few {units}"
    those = (
        f"{shown:,} against {guessed:,} of {count(counts.independent, 'update')}" if counts.by_update else "the counts"
    )
    chance, test = by_chance(shown, guessed, counts.independent, counts.pairs), "Fisher's test"
    if counts.pairs and chance > by_chance(shown, guessed, counts.independent):
        test, those = "sign test", f"{counts.pairs[0]:,} ahead of {counts.pairs[1]:,} updates that differ"
    those += ", unknown ones as recognisable without the update" if counts.unguessed else ""
    return f"{lacking} for the level broken, and none is certified{takes} ({test} of {those}: p = {chance:.2f})."


def _beside(counts: Counts) -> list[str]:
    """Images that are in no count, as nothing ended on them."""
    sentences = [f"On {count(counts.refused, 'more image')} every attack refused."] if counts.refused else []
    return sentences + ([f"On {count(counts.failed, 'more image')} every attack failed."] if counts.failed else [])


def _best(counts: Counts, rows: Sequence[AttackSummary]) -> str:
    if counts.own:
        best = max(rows, key=lambda row: row.recognisable)
        among = f", the strongest of {len(rows)} attacks," if len(rows) > 1 else ""
        one, mean = best.recognisable == 1, graded(best.mean_recognisable)
        if mean == "exact":
            return f"{best.attack}{among} returned {'an exact copy' if one else 'exact copies'}"
        on = "on it" if one else "on average on those that it made recognisable"
        return f"{best.attack}{among} reached {mean} {on}"
    best = max(rows, key=lambda row: -1.0 if row.max_psnr is None else row.max_psnr)
    result = f"the best result, {graded(best.max_psnr)} by {best.attack}, "
    if best.max_psnr is not None and best.max_psnr >= RECOGNISABLE:
        return f"{result}is less than {GUESS_MARGIN:.0f} dB above its guess"
    return f"{result}stays below {RECOGNISABLE:.0f} dB"
