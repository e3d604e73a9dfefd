"""From the folders of a leakage matrix's runs to its cells and to what its trainings reached."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.bounds.privacy import is_budget
from fedsim.report.matrix.cells import MatrixCell
from fedsim.report.run.baseline import guessing, reading, unrun
from fedsim.report.run.images.counts import Counts, count_images
from fedsim.report.run.label_attacks import after_labels, labels_of
from fedsim.report.run.read import RecordedRun, read_run
from fedsim.report.run.records import AttackRecord, ImageRecord
from fedsim.report.run.summary import client_failures, final_accuracy, mean, right_share, unchanged_rounds
from fedsim.report.thresholds import EXACT
from fedsim.storage import json_lines
from fedsim.storage.json_objects import read_object

BASELINE = "baseline.json"
"""In an audit's folder: what a guess without any gradient reaches for each picture."""


def read_training(folder: Path, names: Iterable[str]) -> tuple[float | None, float, dict[str, float], int, int]:
    """(final accuracy, seconds of all rounds, what these defenses measured last, how often a client raised, how many
    rounds aggregated nothing).
    """
    run = read_run(folder)
    prefixes = tuple(f"{name}_" for name in names)
    last: dict[str, Any] = next(reversed(list(json_lines.rows(folder / "metrics.jsonl"))), {})
    measured = {
        key: float(value)
        for key, value in last.items()
        if prefixes and key.startswith(prefixes) and isinstance(value, int | float) and math.isfinite(value)
    }
    raised, unchanged = len(client_failures(run)), len(unchanged_rounds(run))
    return final_accuracy(run), sum(run.round_seconds.values()), measured, raised, unchanged


def over_seeds(measured: Sequence[Mapping[str, float]], trainings: int) -> dict[str, float]:
    """What defenses measured in the trainings of a row that have ended: of what they have spent the largest.

    Args:
        measured: of each, the first seed's first; all else is of that one.
        trainings: of the row, one a seed: while one of them has no such number, the row has none.
    """
    first = {name: value for name, value in (measured[0] if measured else {}).items() if not is_budget(name)}
    named = set.intersection(*map(set, measured)) if len(measured) == trainings and measured else set()
    return first | {name: max(one[name] for one in measured) for name in sorted(named) if is_budget(name)}


def read_cells(folder: Path, state: str, attacks: Sequence[str], updates: int) -> list[MatrixCell]:
    """A cell for each attack from an audit's folder, whatever state the audit is in.

    Args:
        attacks: the matrix's columns; the folder may hold attacks of other calls.
        updates: how many the audit has when it is finished.
    """
    audit, guess = _audit(folder), read_baseline(folder)
    records = () if audit is None else audit.attacks
    without = () if audit is None else guessing(audit).attacks
    labels = frozenset() if audit is None else labels_of(audit)
    silent, cells = audit is not None and unrun([audit], attacks), []
    for name in attacks:
        rows = [row for row in records if row.attack == name]
        cells.append(
            replace(_cell(name, state, rows, updates, guess), counts=count_images(rows, without, labels, silent))
        )
    return cells


def read_counts(folders: Iterable[Path], attacks: Collection[str], blind: Collection[str] = ()) -> Counts:
    """Over all of these attacks in all of a row's audits, which show the same images, as a run's report counts.

    Args:
        blind: baselines among them, of which one without a line leaves open what it reaches.
    """
    attacks = set(attacks).difference(blind)
    records: list[AttackRecord] = []
    without: list[AttackRecord] = []
    audits: list[RecordedRun] = []
    for number, folder in enumerate(folders):
        audit = _audit(folder)
        if audit is not None:
            audits.append(audit)
            records += _apart([one for one in reading(audit).attacks if one.attack in attacks], number)
            without += _apart(guessing(audit).attacks, number)
    labels = {name for name in attacks if after_labels([(audit, name) for audit in audits])}
    return count_images(records, without, labels, unrun(audits, blind))


def _apart(records: Iterable[AttackRecord], audit: int) -> list[AttackRecord]:
    """Updates of two audits have the same names."""
    return [replace(one, observation=f"{audit}/{one.observation}") for one in records]


def _audit(folder: Path) -> RecordedRun | None:
    """Each image with its guess, from the audit's own where its line has none; None where it has not begun."""
    if not folder.is_dir():
        return None
    guess, run = read_baseline(folder), read_run(folder)

    def guessed(image: ImageRecord) -> ImageRecord:
        return image if image.guess_psnr is not None else replace(image, guess_psnr=guess.get(image.image))

    return replace(run, attacks=tuple(replace(one, images=tuple(map(guessed, one.images))) for one in run.attacks))


def read_baseline(folder: Path) -> dict[str, float]:
    """The guess's PSNR in dB by picture; empty where the audit has not begun."""
    path = folder / BASELINE
    if not path.is_file():
        return {}
    return {name: float(value) for name, value in read_object(path).items()}


def _cell(name: str, state: str, rows: list[AttackRecord], updates: int, guess: Mapping[str, float]) -> MatrixCell:
    done = [row for row in rows if row.status == "done"]
    refused = [row for row in rows if row.status == "refused"]
    failed = [row for row in rows if row.status not in ("done", "refused")]
    status = "failed" if failed else "done" if done else "refused"
    images = [image for row in done + refused for image in row.pictures.values()]
    rebuilt = [value for image in images if (value := image.leaked) is not None]
    own = [image.recognisable for image in images]
    # A guess that is unknown (the picture is none of the audit's) counts as nothing at all.
    leaked = [image.guess_psnr or 0.0 if image.leaked is None else min(image.leaked, EXACT) for image in images]
    seen = [any(image.as_seen for image in forms) for row in done for forms in row.forms.values()]
    labelled = [row for row in done if row.label_share is not None]
    reasons = [row.reason or "no reason given" for row in failed or refused]
    return MatrixCell(
        attack=name,
        state=state,
        status=status if len(rows) >= updates else "pending",
        reason=statistics.mode(reasons) if reasons else "",
        done=len(done),
        refused=len(refused),
        failed=len(failed),
        pictures=len(images),
        rebuilt=len(rebuilt),
        private_psnr=mean(rebuilt),
        leakage=mean(leaked) if rebuilt else None,
        baseline=mean(list(guess.values())),
        recognised=sum(own) / len(images) if rebuilt else None,
        labelled=len(labelled),
        label_exact=mean([float(row.label_exact) for row in done if row.label_exact is not None]),
        label_share=right_share(labelled) if labelled else None,
        seconds=mean([row.seconds for row in done if row.seconds is not None]),
        batch=max((len(row.pictures) for row in rows), default=None),
        as_seen=sum(one and not plain for one, plain in zip(seen, own, strict=False)),  # those that are done come first
    )
