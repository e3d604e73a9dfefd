"""The run in one sentence, for a reader who reads nothing else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim.report.baseline import Baseline, against_guess, best_baseline, guessing, needs_no_gradient, reading
from fedsim.report.label_attacks import labels_of
from fedsim.report.leakage import Leakage, summarise_leakage
from fedsim.report.read import RunFolder, read_run
from fedsim.report.summary import (
    AttackSummary,
    Group,
    final_accuracy,
    refusals,
    summarise_attacks,
)
from fedsim.report.thresholds import RECOGNISABLE
from fedsim.report.wording import as_seen_words, below, count, decibels, listed, observed_pictures, percent

Level = Literal["leaked", "partial", "safe", "unknown"]

REASONS_SHOWN = 3

TAGS: dict[Level, str] = {
    "leaked": "Pictures leaked",
    "partial": "Some pictures leaked",
    "safe": "These attacks rebuilt nothing recognisable",
    "unknown": "Not known",
}

REFUSED = "These attacks do not apply"
"""The tag where every attack on pictures was refused on every update."""

AS_SEEN = "Rebuilt as the model saw it"
"""The tag where what a defense made of the pictures was rebuilt, and nothing closer to the clients' own."""


@dataclass(frozen=True)
class Verdict:
    """Plain words, to be escaped by whoever shows them.

    Attributes:
        level: `leaked` from half of the observed pictures on, `partial` below, `safe` where the attacks that
            ran rebuilt none, `unknown` where nothing was measured, where none was rebuilt but an attack failed or all
            refused, or where they were rebuilt as the model saw them, changed by a defense.
        tag: the same in a few words.
        sentence: the verdict.
        details: what a reader asks next.
    """

    level: Level
    tag: str
    sentence: str
    details: tuple[str, ...]


def verdict_of(run_folder: Path) -> Verdict:
    """The verdict that the page of this run gives.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    return verdict(read_run(run_folder))


def verdict(run: RunFolder) -> Verdict:
    """Judge by the best result for each picture, whichever attack it came from; baselines are no attacks.

    Attacks on labels alone decide nothing: the verdict is about pictures.
    """
    without, run = guessing(run).attacks, reading(run)
    rows, leakage = summarise_attacks(run), summarise_leakage(run)
    baseline = best_baseline(rows[0].attack, run.attacks, without) if rows else None
    labels = labels_of(run)
    on_pictures = [row for row in rows if row.attack not in labels]
    level, sentence = _leakage_sentence(run, on_pictures, leakage, len(rows) > len(on_pictures))
    unended = _unended(run, rows)
    tag = ""
    if level == "safe" and _unended(run, on_pictures, labels):
        level = "unknown"
    elif level == "safe" and not leakage.scored:
        level, tag = "unknown", REFUSED
    if leakage.as_seen:
        level, tag = (level, "") if leakage.recognisable else ("unknown", AS_SEEN)
        words = as_seen_words(
            leakage.as_seen, leakage.pictures, leakage.seen_psnr, leakage.own_psnr, run.names("defense")
        )
        sentence = f"The server {words}. {sentence}"
    details = [
        *unended,
        *_refusals(run, rows, on_pictures, leakage),
        *_guess(rows, baseline),
        *_certified(leakage),
        *_labels(rows),
        *_accuracy(run),
    ]
    if not run.finished:
        details.append("The run did not finish: this page shows what was there when it stopped.")
    return Verdict(level, tag or TAGS[level], sentence, tuple(details))


def _leakage_sentence(run: RunFolder, rows: list[AttackSummary], leakage: Leakage, beside: bool) -> tuple[Level, str]:
    """Of the attacks on pictures; `beside` says whether others, on labels alone, ran too."""
    observed = observed_pictures(leakage.pictures, leakage.different)
    if not rows and beside:
        return "unknown", f"Only labels were attacked: no attack tried to rebuild the {observed}."
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
            f"{none} rebuilt recognisably: the best result, {below(best.max_psnr, RECOGNISABLE)} by "
            f"{best.attack}, stays below {RECOGNISABLE:.0f} dB."
        )
    if leakage.returned:
        return "unknown", (
            f"The attacks returned {count(leakage.returned, 'picture')} for {observed}; without audit their likeness "
            "to the originals was not measured."
        )
    ended = sorted(row.attack for row in rows if row.done)
    if ended:
        return "unknown", _without_pictures(ended, observed)
    if all(row.refused == 0 for row in rows):
        which = "No attack that rebuilds pictures" if beside else "No attack"
        return "unknown", f"{which} came to an end, so this run says nothing about what the server could learn."
    who = listed([f"{row.attack} refused {row.refused:,} of {_updates(row)}" for row in rows if row.refused])
    groups = refusals(run)
    why = f", because {_reason(groups[0])}" if len(groups) == 1 else ""
    if any(row.failed for row in rows):
        return "unknown", f"No attack that rebuilds pictures came to an end: {who}{why}; the rest failed."
    return "safe", f"No picture was rebuilt: {who}{why}."


def _without_pictures(ended: list[str], observed: str) -> str:
    return (
        f"{listed(ended)} came to an end without a picture that could be used, so this run does not say what "
        f"the server could learn of the {observed}."
    )


def _unended(run: RunFolder, rows: list[AttackSummary], aside: frozenset[str] = frozenset()) -> list[str]:
    """Attacks that failed, or never ran although others did: what they would have rebuilt is not known.

    Args:
        aside: names of attacks that are passed over.
    """
    failed = [f"{row.attack} on {row.failed:,} of {_updates(row)}" for row in rows if row.failed]
    ran = aside | {record.attack for record in run.attacks}
    silent = [name for name in run.names("attack") if name not in ran and not needs_no_gradient(run, name)]
    words = [f"Failed: {listed(failed)}."] if failed else []
    return words + ([f"Never ran: {listed(silent)}."] if silent and rows else [])


def _updates(row: AttackSummary) -> str:
    return count(row.observations, "observed update")


def _mean(row: AttackSummary) -> str:
    mean = decibels(row.mean_leaked)
    return "an exact copy of each" if mean == "exact" else f"{mean} on average"


def _refusals(
    run: RunFolder, rows: list[AttackSummary], on_pictures: list[AttackSummary], leakage: Leakage
) -> list[str]:
    """Why attacks refused, where that decides the verdict: nothing recognisable came out."""
    if leakage.recognisable:
        return []
    groups = refusals(run)
    refusing = any(row.refused for row in on_pictures)
    told = len(groups) == 1 and refusing and not leakage.returned and not any(row.done for row in on_pictures)
    sentences = [] if told else [f"{group.attack} refused: {_reason(group)}." for group in groups[:REASONS_SHOWN]]
    if len(groups) > REASONS_SHOWN:
        sentences.append(f"{count(len(groups) - REASONS_SHOWN, 'further reason')} below.")
    if leakage.scored or (on_pictures and all(row.refused == row.observations for row in on_pictures)):
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
    right = "what the model saw" if leakage.as_seen else "right"
    share = "All" if leakage.certified == leakage.returned else f"{leakage.certified:,}"
    rebuilt = f"{share} of the {count(leakage.returned, 'rebuilt picture')} are certified"
    if not leakage.certified_wrong:
        return [f"{rebuilt}: the server can tell that they are {right} without the originals."]
    wrong = count(leakage.certified_wrong, "certified result")
    return [f"{rebuilt}, but wrongly so in part: {wrong} stayed below {RECOGNISABLE:.0f} dB."]


def _labels(rows: list[AttackSummary]) -> list[str]:
    best = max((row for row in rows if row.label_share is not None), key=lambda row: row.label_share or 0, default=None)
    return [] if best is None else [f"{percent(best.label_share)} of the labels were recovered, by {best.attack}."]


def _accuracy(run: RunFolder) -> list[str]:
    accuracy = final_accuracy(run)
    if accuracy is None:
        return ["An audit trains nothing, so there is no accuracy."] if run.kind == "audit" else []
    pictures = "test pictures" if run.test_pictures is None else count(run.test_pictures, "test picture")
    return [f"The model classified {percent(accuracy)} of the {pictures} correctly after round {_last(run)}."]


def _last(run: RunFolder) -> int:
    return max(record.number for record in run.rounds if record.accuracy is not None)
