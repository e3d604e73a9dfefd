"""The run in one sentence, for a reader who reads nothing else."""

from dataclasses import dataclass
from typing import Literal

from fedsim.report.baseline import Baseline, against_guess, best_baseline, guessing, needs_no_gradient, reading
from fedsim.report.read import RunFolder
from fedsim.report.summary import (
    RECOGNISABLE,
    AttackSummary,
    Group,
    Leakage,
    final_accuracy,
    refusals,
    summarise_attacks,
    summarise_leakage,
)
from fedsim.report.wording import count, decibels, listed, percent

Level = Literal["leaked", "partial", "safe", "unknown"]

REASONS_SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """Plain words, to be escaped by whoever shows them.

    Attributes:
        level: `leaked` from half of the observed pictures on, `partial` below, `safe` where the attacks that
            ran rebuilt none, `unknown` where nothing was measured, or where none was rebuilt but an attack failed.
        sentence: the verdict.
        details: what a reader asks next.
    """

    level: Level
    sentence: str
    details: tuple[str, ...]


def verdict(run: RunFolder) -> Verdict:
    """Judge by the best result for each picture, whichever attack it came from; baselines are no attacks."""
    without, run = guessing(run).attacks, reading(run)
    rows, leakage = summarise_attacks(run), summarise_leakage(run)
    baseline = best_baseline(rows[0].attack, run.attacks, without) if rows else None
    level, sentence = _leakage_sentence(run, rows, leakage)
    unended = _unended(run, rows)
    if level == "safe" and unended:
        level = "unknown"
    details = [
        *unended,
        *_refusals(run, rows, leakage),
        *_guess(rows, baseline),
        *_certified(leakage),
        *_labels(rows),
        *_accuracy(run),
    ]
    if not run.finished:
        details.append("The run did not finish: this page shows what was there when it stopped.")
    return Verdict(level, sentence, tuple(details))


def _leakage_sentence(run: RunFolder, rows: list[AttackSummary], leakage: Leakage) -> tuple[Level, str]:
    observed = count(leakage.pictures, "observed picture")
    if not rows:
        return "unknown", "No attack has run, so this run says nothing about what the server could learn."
    strongest = rows[0]
    if leakage.recognisable:
        among = f", the strongest of {len(rows)} attacks," if len(rows) > 1 else ""
        share = "all" if leakage.recognisable == leakage.pictures else f"{leakage.recognisable:,} of"
        share = "the" if leakage.pictures == 1 else share
        level: Level = "leaked" if 2 * leakage.recognisable >= leakage.pictures else "partial"
        return level, (
            f"The server rebuilt {share} {observed.removeprefix('1 ')} recognisably (PSNR ≥ {RECOGNISABLE:.0f} dB): "
            f"{strongest.attack}{among} reached {_mean(strongest)}."
        )
    if leakage.scored:
        none = "The observed picture was not" if leakage.pictures == 1 else f"None of the {observed} was"
        best = max(rows, key=lambda row: -1.0 if row.max_psnr is None else row.max_psnr)
        return "safe", (
            f"{none} rebuilt recognisably: the best result, {decibels(best.max_psnr)} by "
            f"{best.attack}, stays below {RECOGNISABLE:.0f} dB."
        )
    if leakage.returned:
        return "unknown", (
            f"The attacks returned {count(leakage.returned, 'picture')} for {observed}; without audit their likeness "
            "to the originals was not measured."
        )
    if any(row.done for row in rows):
        return "unknown", _without_pictures(run, observed)
    if all(row.refused == 0 for row in rows):
        return "unknown", "No attack came to an end, so this run says nothing about what the server could learn."
    who = listed([f"{row.attack} refused {row.refused:,} of {_updates(row)}" for row in rows if row.refused])
    groups = refusals(run)
    why = f", because {_reason(groups[0])}" if len(groups) == 1 else ""
    failed = any(row.failed for row in rows)
    return ("unknown" if failed else "safe"), f"No picture was rebuilt: {who}{', the rest failed' * failed}{why}."


def _without_pictures(run: RunFolder, observed: str) -> str:
    ended = dict.fromkeys(one.attack for one in run.attacks if one.status == "done" and not one.labels_alone)
    if not ended:
        return f"Only labels were attacked: no attack tried to rebuild the {observed}."
    return (
        f"{listed(list(ended))} came to an end without a picture that could be used, so this run does not say what "
        f"the server could learn of the {observed}."
    )


def _unended(run: RunFolder, rows: list[AttackSummary]) -> list[str]:
    """Attacks that failed, or never ran although others did: what they would have rebuilt is not known."""
    failed = [f"{row.attack} on {row.failed:,} of {_updates(row)}" for row in rows if row.failed]
    ran = {record.attack for record in run.attacks}
    silent = [name for name in run.names("attack") if name not in ran and not needs_no_gradient(run, name)]
    words = [f"Failed: {listed(failed)}."] if failed else []
    return words + ([f"Never ran: {listed(silent)}."] if silent and rows else [])


def _updates(row: AttackSummary) -> str:
    return count(row.observations, "observed update")


def _mean(row: AttackSummary) -> str:
    mean = decibels(row.mean_leaked)
    return "an exact copy of each" if mean == "exact" else f"{mean} on average"


def _refusals(run: RunFolder, rows: list[AttackSummary], leakage: Leakage) -> list[str]:
    """Why attacks refused, where that decides the verdict: nothing recognisable came out."""
    if leakage.recognisable:
        return []
    groups = refusals(run)
    told = len(groups) == 1 and not leakage.scored and not any(row.done for row in rows)
    sentences = [] if told else [f"{group.attack} refused: {_reason(group)}." for group in groups[:REASONS_SHOWN]]
    if len(groups) > REASONS_SHOWN:
        sentences.append(f"{count(len(groups) - REASONS_SHOWN, 'further reason')} below.")
    if leakage.scored or (rows and all(row.refused == row.observations for row in rows)):
        sentences.append("That holds for the attacks that ran, not for every attack that exists.")
    return sentences


def _reason(group: Group) -> str:
    return f"{group.reason} (one of {count(group.wordings, 'wording')})" if group.wordings > 1 else group.reason


def _guess(rows: list[AttackSummary], baseline: Baseline | None) -> list[str]:
    if baseline is None or not rows or rows[0].mean_leaked is None:
        return []
    return [against_guess(rows[0].attack, baseline)]


def _certified(leakage: Leakage) -> list[str]:
    if not leakage.returned:
        return []
    if not leakage.certified:
        return ["No result is certified: without the originals the server could not tell good from bad."]
    share = "All" if leakage.certified == leakage.returned else f"{leakage.certified:,}"
    rebuilt = f"{share} of the {count(leakage.returned, 'rebuilt picture')} are certified"
    if not leakage.certified_wrong:
        return [f"{rebuilt}: the server can tell that they are right without the originals."]
    wrong = count(leakage.certified_wrong, "certified result")
    return [f"{rebuilt}, but wrongly so in part: {wrong} stayed below {RECOGNISABLE:.0f} dB."]


def _labels(rows: list[AttackSummary]) -> list[str]:
    best = max((row for row in rows if row.label_share is not None), key=lambda row: row.label_share or 0, default=None)
    return [] if best is None else [f"{percent(best.label_share)} of the labels were recovered, by {best.attack}."]


def _accuracy(run: RunFolder) -> list[str]:
    accuracy = final_accuracy(run)
    if accuracy is None:
        return ["An audit trains nothing, so there is no accuracy."] if run.kind == "audit" else []
    return [f"The model classified {percent(accuracy)} of the test pictures correctly after round {_last(run)}."]


def _last(run: RunFolder) -> int:
    return max(record.number for record in run.rounds if record.accuracy is not None)
