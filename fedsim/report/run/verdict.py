"""The run in one sentence, for a reader who reads nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.metrics.chance import only_guessed
from fedsim.report.level import Level, with_theorem
from fedsim.report.level_wording import TAGS, few_images, few_test_images, judged
from fedsim.report.run.baseline import Baseline, against_guess, best_baseline, guessing, reading, unrun
from fedsim.report.run.bounds.records import cautions, proof_of
from fedsim.report.run.certificates import certificate_sentences
from fedsim.report.run.images.counts import Counts, asked
from fedsim.report.run.images.leakage import Leakage, summarise_leakage
from fedsim.report.run.label_attacks import beside_labels, in_updates, labels_of, only_attacked
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.run.summary import (
    AttackSummary,
    Group,
    final_accuracy,
    last_accuracy,
    most_labels,
    refusals,
    summarise_attacks,
    uncertified,
    unchanged_rounds,
)
from fedsim.report.wording import count, listed, percent

REASONS_SHOWN = 3


@dataclass(frozen=True)
class Verdict:
    """Plain words, to be escaped by whoever shows them.

    Attributes:
        level: as `fedsim.report.level` has it, from the counts and from a theorem.
        by_eye: images came out and there are no originals to hold them against, which leaves the level untested.
        sentence: what was rebuilt, of how much, and what is without the update; or why nothing was tested. Before it
            stands the theorem, with its numbers, where the level is *proven*.
        cautions: where a theorem and what was found disagree, what few images leave open, rounds without an aggregate.
        details: what a reader asks next.
        uncertified: why nothing is certified, where that could have been; the page says it beside each image.
    """

    level: Level
    sentence: str
    cautions: tuple[str, ...]
    details: tuple[str, ...]
    counts: Counts
    by_eye: bool = False
    uncertified: str = ""

    @property
    def tag(self) -> str:
        return "Judge by eye" if self.by_eye else TAGS[self.level]

    @property
    def line(self) -> str:
        """The verdict in a line, for a terminal."""
        parts = [f"{self.tag.lower()}: {self.sentence}", self.uncertified, *self.cautions]
        return " ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """JSON, as it stands in `summary.json`."""
        return {
            "level": self.level,
            "sentence": self.sentence,
            "cautions": list(self.cautions),
            "images": self.counts.images,
            "updates": self.counts.updates,
            "certified": self.counts.certified,
            "recognisable": self.counts.own,
            "recognisable_as_seen": self.counts.as_seen,
            "guessed": self.counts.guessed,
            "unguessed": self.counts.unguessed,
            "refused": self.counts.refused,
            "failed": self.counts.failed,
        }


def verdict(run: RecordedRun) -> Verdict:
    """Judge by the best result for each image, whichever attack it came from; baselines are no attacks.

    Attacks on labels alone decide nothing: the verdict is about images.
    """
    without, silent, run = guessing(run).attacks, unrun([run]), reading(run)
    labels = labels_of(run)
    rows, leakage = summarise_attacks(run), summarise_leakage(run, without, labels, silent)
    on_images = [row for row in rows if row.attack not in labels]
    counted = leakage.counts.level
    proof = proof_of(run.bounds) if run.finished else None
    level = with_theorem(counted, proof is not None, leakage.counts.beyond_guess)
    tested = counted != "not tested"
    by_eye = level == "not tested" and leakage.returned > 0 and not _compared(run)
    details = [
        *(_mechanism(run) if level == "proven" else ()),
        *_unended(run, rows, without),
        *_refusals(run, on_images, leakage, proven=level == "proven"),
        *_guess(rows, best_baseline(rows[0].attack, run.attacks, without) if rows else None),
        *certificate_sentences(run.attacks, asked=leakage.returned > 0),
        *_labels(run, rows),
        *_accuracy(run),
    ]
    if not run.finished:
        details.append("The run did not finish: this page shows what was there when it stopped.")
    shown = judged(leakage, on_images, run.changes) if tested else _untested(run, on_images, leakage, rows)
    return Verdict(
        level,
        f"{proof.sentence} {shown}" if proof is not None and level == "proven" else shown,
        (
            *cautions(run.bounds, leakage.counts.beyond_guess, leakage.counts.unguessed),
            *few_images(leakage.counts),
            *_few_test_images(run),
            *_unchanged(run),
        ),
        tuple(details),
        leakage.counts,
        by_eye,
        "" if leakage.counts.certified else _uncertified(run),
    )


def _mechanism(run: RecordedRun) -> list[str]:
    """Whether canaries tested what the theorem takes for granted."""
    tests = [one for one in run.bounds if one.kind == "test" and one.status == "done"]
    if any(one.values.get("untested", 0.0) > 0 for one in tests):
        return ["Canaries found no fault in what they tested; not every private defense was (see the test)."]
    if tests:
        return ["Canaries found no fault in the mechanism, which proves none of what it claims."]
    return ["No canary tested the mechanism: that it clips and adds noise as its settings say is taken for granted."]


def _compared(run: RecordedRun) -> bool:
    """Whether some result was held against its originals."""
    return any(record.scored for record in run.attacks if record.status == "done")


def _untested(run: RecordedRun, rows: list[AttackSummary], leakage: Leakage, every: Sequence[AttackSummary]) -> str:
    """Why nothing can be said of images.

    Args:
        rows: of attacks on images.
        every: of those and of others, on labels alone.
    """
    observed, beside = count(leakage.pictures, "observed image"), len(every) > len(rows)
    if not rows and beside:
        return f"{only_attacked(run.attacks)}: no attack tried to rebuild the {observed}."
    if not rows:
        return "No attack has run, so this run says nothing about what the server could learn."
    if leakage.returned:
        why = "their likeness to the originals could not be measured, as it is no number"
        why = why if _compared(run) else "there are no originals to compare with"
        return f"The attacks returned {count(leakage.returned, 'image')} for {observed}; {why}, and none is certified."
    ended = sorted(row.attack for row in rows if row.done)
    if ended:
        return (
            f"{listed(ended)} came to an end without an image that could be used, so this run does not say what "
            f"the server could learn of the {observed}."
        )
    if all(row.refused == 0 for row in rows):
        which = "No attack that rebuilds images" if beside else "No attack"
        return f"{which} came to an end, so this run says nothing about what the server could learn."
    who = listed([f"{row.attack} refused {row.refused:,} of {_updates(row)}" for row in rows if row.refused])
    groups = refusals(run)
    why = f", because {_reason(groups[0])}" if len(groups) == 1 else ""
    if any(row.failed for row in rows):
        return f"No attack that rebuilds images came to an end: {who}{why}; the rest failed."
    return f"No image was rebuilt: {who}{why}."


def _unended(run: RecordedRun, rows: list[AttackSummary], without: Sequence[AttackRecord]) -> list[str]:
    """Attacks that failed, or never ran although others did: what they would have rebuilt is not known."""
    failed = [f"{row.attack} on {row.failed:,} of {_updates(row)}" for row in rows if row.failed]
    ran = {record.attack for record in (*run.attacks, *without)}
    silent = [name for name in run.names("attack") if name not in ran]
    who = "it" if len(failed) == 1 else "they"
    words = [f"Failed: {listed(failed)}; what {who} would have rebuilt is not known."] if failed else []
    return [*words, *_unguessed(run, without), *([f"Never ran: {listed(silent)}."] if silent and rows else [])]


def _unguessed(run: RecordedRun, without: Sequence[AttackRecord]) -> list[str]:
    """Baselines that did not end on each update: what they would have reached is not known."""
    observed = {record.observation for record in run.attacks}
    ended = {record.attack: set[str]() for record in asked(without)}
    for record in without:
        if record.status == "done" and record.attack in ended:
            ended[record.attack].add(record.observation)
    lacking = {name: len(observed - found) for name, found in ended.items() if observed - found}
    if not lacking:
        return []
    updates, who = count(len(observed), "observed update"), "it" if len(lacking) == 1 else "they"
    those = listed([f"{name} on {number:,} of {updates}" for name, number in lacking.items()])
    return [f"Did not end: {those}; what {who} would reach without the update is not known."]


def _updates(row: AttackSummary) -> str:
    return count(row.observations, "observed update")


def _refusals(run: RecordedRun, on_images: list[AttackSummary], leakage: Leakage, proven: bool) -> list[str]:
    """Why attacks refused, where that decides the verdict: nothing recognisable came out.

    Args:
        proven: a theorem holds for every attack, so that nothing is left open by those that did not run.
    """
    if leakage.counts.recognisable or leakage.counts.certified:
        return []
    groups = refusals(run)
    refusing = any(row.refused for row in on_images)
    given = len(groups) == 1 and refusing and not leakage.returned and not any(row.done for row in on_images)
    sentences = [] if given else [f"{group.attack} refused: {_reason(group)}." for group in groups[:REASONS_SHOWN]]
    if len(groups) > REASONS_SHOWN:
        sentences.append(f"{count(len(groups) - REASONS_SHOWN, 'further reason')} below.")
    if not proven and (leakage.scored or (on_images and all(row.refused == row.observations for row in on_images))):
        sentences.append("That holds for the attacks that ran, not for every attack that exists.")
    return sentences


def _uncertified(run: RecordedRun) -> str:
    groups = uncertified(run)
    return f"{groups[0].attack} is not certified: {_reason(groups[0])}." if groups else ""


def _reason(group: Group) -> str:
    return f"{group.reason} (one of {group.wordings:,} sets of numbers)" if group.wordings > 1 else group.reason


def _guess(rows: list[AttackSummary], baseline: Baseline | None) -> list[str]:
    if baseline is None or not rows or rows[0].mean_leaked is None or rows[0].as_seen:
        return []
    return [against_guess(rows[0].attack, baseline, rows[0].pictures)]


def _labels(run: RecordedRun, rows: list[AttackSummary]) -> list[str]:
    return [
        f"{percent(best.label_share)} of the labels{in_updates(best)} were recovered, by {best.attack}"
        f"{beside_labels(run, best.attack)}."
        for best in most_labels(rows)[:1]
    ]


def _accuracy(run: RecordedRun) -> list[str]:
    number, accuracy = last_accuracy(run)
    if accuracy is None:
        return ["An audit trains nothing, so there is no accuracy."] if run.kind == "audit" else []
    images = "test images" if run.test_pictures is None else count(run.test_pictures, "test image")
    return [
        f"The model classified {percent(accuracy)} of the {images} correctly after round {number}.",
        *_guessed(run, accuracy),
    ]


def _guessed(run: RecordedRun, accuracy: float) -> list[str]:
    if not only_guessed([accuracy], run.test_pictures, run.commonest_class):
        return []
    always = f"always naming the commonest class, which is right for {percent(run.commonest_class)}"
    return [f"That is not clearly more than {always}."]


def _few_test_images(run: RecordedRun) -> list[str]:
    accuracy = final_accuracy(run)
    words = few_test_images([] if accuracy is None else [accuracy], run.test_pictures)
    return [f"The accuracy rests on {words}."] if words else []


def _unchanged(run: RecordedRun) -> list[str]:
    rounds = [one for one in run.rounds if one.number]
    lost = unchanged_rounds(run)
    if not lost:
        return []
    named = f"{'round' if len(lost) == 1 else 'rounds'} {listed([str(number) for number in lost])}"
    which = named if len(lost) <= REASONS_SHOWN else f"{len(lost):,} of {len(rounds):,} rounds"
    return [f"Nothing was aggregated in {which}: the model did not change."]
