"""Attacks that are after labels, or after what else is no image: what becomes of them says nothing about images."""

from collections import Counter
from collections.abc import Iterable

from fedsim.metrics.labels import even_share
from fedsim.report.run.read import RecordedRun
from fedsim.report.run.records import AttackRecord
from fedsim.report.run.summary import AttackSummary, ByRound, by_round, right_share
from fedsim.report.wording import count, listed, percent


def after_labels(runs: Iterable[tuple[RecordedRun, str]]) -> bool:
    """Whether one attack, under the name that each of these runs gives it, never tries to rebuild an image.

    Its results say what it is after, those that it refused too. One that says images and leaves labels alone on
    every update counts by what it left.
    """
    records = [record for run, attack in runs for record in run.attacks if record.attack == attack]
    done = [record for record in records if record.status == "done"]
    return _stated(records) or (bool(done) and all(record.only_labels for record in done))


def labels_of(run: RecordedRun) -> frozenset[str]:
    """Names of the run's attacks on labels alone, and of others that are not after images."""
    names = {*run.names("attack"), *(record.attack for record in run.attacks)}
    return frozenset(name for name in names if after_labels([(run, name)]))


def only_attacked(records: Iterable[AttackRecord]) -> str:
    """`Only labels were attacked`, where nothing was after images."""
    targets = sorted({"labels" if one.target in (None, "images") else one.target for one in records}) or ["labels"]
    return f"Only {listed(targets)} {'were' if len(targets) > 1 or targets[0].endswith('s') else 'was'} attacked"


def in_updates(row: AttackSummary) -> str:
    """` in 1 of 20 observed updates`, whose labels the attack's share is of; empty where it is of all."""
    of = count(row.observations, "observed update")
    return "" if row.labelled == row.observations else f" in {row.labelled:,} of {of}"


def beside_labels(run: RecordedRun, attack: str) -> str:
    """` (each class equally often: 20.0 %)`: what naming them so gets right where the attack was scored on labels.

    It says so where the attack gets no more; empty where no guess is known.
    """
    scored = [one for one in run.attacks if one.attack == attack and one.label_share is not None]
    guess = even_guess(run, scored)
    if guess is None:
        return ""
    none = "no better than a guess, " if right_share(scored) <= guess else ""
    return f" ({none}each class equally often: {percent(guess)})"


def labels_by_round(run: RecordedRun, attack: str) -> tuple[ByRound, ByRound]:
    """(round, share) of its labels that an attack recovered, and that naming each class equally often gets right."""
    recovered, guessed = [], []
    for number, records in by_round(run, attack):
        scored = [one for one in records if one.label_share is not None]
        if scored:
            recovered.append((number, right_share(scored)))
            guessed += [(number, guess)] if (guess := even_guess(run, scored)) is not None else []
    return recovered, guessed


def even_guess(run: RecordedRun, scored: Iterable[AttackRecord]) -> float | None:
    """The share that naming each class equally often gets right: of each update's images, once each.

    As many labels as the attack named, each time. None where the images' own or the number of classes are not on
    record.
    """
    known = [([found[0].label for found in one.forms.values()], one.named) for one in scored if one.images]
    known = [(labels, named) for labels, named in known if None not in labels]
    if not known or not run.classes:
        return None
    classes = len(run.classes)
    right = [even_share(Counter(labels).values(), classes, named) * len(labels) for labels, named in known]
    return sum(right) / sum(len(labels) for labels, _ in known)


def _stated(records: list[AttackRecord]) -> bool:
    return any(record.target not in (None, "images") for record in records)
