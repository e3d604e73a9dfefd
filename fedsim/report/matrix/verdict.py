"""A leakage matrix in sentences, and how large a difference of two accuracies must be to be one."""

from typing import get_args

from fedsim.bounds.robustness import PROVEN_KAPPA
from fedsim.bounds.robustness_wording import probability
from fedsim.metrics.chance import accuracy_error, accuracy_reach, chance_between
from fedsim.report.level import Level
from fedsim.report.level_wording import few_seeds
from fedsim.report.matrix.cells import Matrix, MatrixRow
from fedsim.report.matrix.wording import counts_text, leakage_text
from fedsim.report.wording import count, listed, percent


def standard_error(row: MatrixRow, test_pictures: int | None) -> float | None:
    """Of the row's accuracy, in [0, 1], to be drawn; None where it is not known."""
    return accuracy_error(row.accuracies, test_pictures)


def resolution(one: MatrixRow, other: MatrixRow, test_pictures: int | None) -> float | None:
    """The smallest difference of two accuracies that chance does not explain; None where no error is known."""
    return chance_between(*(accuracy_reach(row.accuracies, test_pictures) for row in (one, other)))


def reference(matrix: Matrix, row: MatrixRow) -> MatrixRow | None:
    """The undefended row of the same data, clients, rounds and batches, with updates of the same size."""
    rows = matrix.rows_of(row.batch) if row.own is not None else ()  # an earlier version did not say how it is trained
    return next((one for one in rows if not one.defended and one.own == row.own), None)


def difference(matrix: Matrix, row: MatrixRow) -> str:
    """Points of accuracy that the row has over its undefended one, with what chance may do: `-3.1 ± 4.2`."""
    against = reference(matrix, row)
    if not row.defended or against is None or row.accuracy is None or against.accuracy is None:
        return ""
    within = resolution(row, against, matrix.test_pictures)
    points = f"{100 * (row.accuracy - against.accuracy):+.1f}"
    return points if within is None else f"{points} ± {100 * within:.1f}"


def verdicts(matrix: Matrix) -> list[str]:
    """What a reader takes home who reads nothing else: a paragraph for each size of an update, of a line for
    each sentence."""
    if not matrix.reading:
        return ["No attack was asked for, baselines alone."]
    old = any(row.cells and (row.counts is None or row.own is None) for row in matrix.rows)
    told = list(filter(None, (_verdict(matrix, batch) for batch in matrix.batches)))
    if old:
        told.append("An earlier version counted less: call fedsim-matrix again here, and the levels are counted anew.")
    return told or ["Nothing has been measured yet."]


def why_unplaced(row: MatrixRow) -> str:
    """Why the row has no place between accuracy and leakage; empty for one that has."""
    if row.placed:
        return ""
    stages = {f"training, seed {seed}": stage for seed, stage in row.trainings.items()}
    stages |= {f"audit, {state}": stage for state, stage in row.audits.items()}
    told = [row.mismatch]
    told += ["not tested: no attack came to an end with an image"] * (not row.tested and not _waits(row))
    told += ["images came out as the model saw them: what an eye finds in them PSNR does not tell"] * row.as_seen
    told += [f"{what}: {stage.status}, {stage.reason}" for what, stage in stages.items() if stage.reason]
    for cell in row.cells:
        if cell.status == "failed" and not cell.blind:
            updates = cell.done + cell.refused + cell.failed
            told.append(f"{cell.attack} ({cell.state}) failed on {cell.failed} of {updates}: {cell.reason}")
    if row.cells and all(cell.blind for cell in row.cells):
        told.append("baselines alone")
    return "; ".join(dict.fromkeys(filter(None, told))) or "not finished yet"


def _verdict(matrix: Matrix, batch: int | None) -> str:
    """Empty where nothing is known of updates of this size."""
    rows = [row for row in matrix.rows_of(batch) if row.counts is not None and not _waits(row)]
    defenses, against = [row for row in rows if row.defended], next((row for row in rows if not row.defended), None)
    told = [_of_level(level, defenses) for level in get_args(Level)]
    told.append(_as_seen([row.name for row in defenses if row.as_seen]))
    told.append(_most_accurate(matrix, [row for row in defenses if row.level == "open" and not row.mismatch]))
    told.append("" if against is None else _undefended(against))
    text = "\n".join(filter(None, told))
    return text if not text or batch is None else f"Updates of {count(batch, 'image')}.\n{text}"


def _waits(row: MatrixRow) -> bool:
    """Nothing of it has been measured, and something is still to come."""
    statuses = [one.status for one in row.audits.values()] + [cell.status for cell in row.cells]
    return not row.tested and (not statuses or "pending" in statuses)


def _of_level(level: Level, defenses: list[MatrixRow]) -> str:
    rows = [row for row in defenses if row.level == level]
    if not rows:
        return ""
    named = "; ".join(_counted(row) for row in rows)
    of = f"{level.capitalize()}: {len(rows)} of {count(len(defenses), 'defense')}"
    if level == "not tested":
        return f"{of} ({named})."
    if level == "proven":
        return f"{of}: {_of_proven(rows)} (recognisable images: {named})."
    return f"{of} (recognisable images: {named}){_of_open(rows) if level == 'open' else ''}."


def _of_proven(rows: list[MatrixRow]) -> str:
    bounds = listed([f"{probability(row.gamma)} behind {row.name}" for row in rows if row.gamma is not None])
    before = (
        "whoever knows all that is reported without noise and would rebuild an image with probability "
        f"{PROVEN_KAPPA:g} before, an assumption about images"
    )
    released = "after all releases of a training and of the updates that are attacked"
    states = ", in either state, each by itself" if any(len(row.audits) > 1 for row in rows) else ""
    return f"{before}, does so with at most {bounds} {released}{states}"


def _of_open(rows: list[MatrixRow]) -> str:
    counts = [row.counts for row in rows if row.counts is not None]
    more = [one for one in counts if one.recognisable > one.guessed]
    told = ["none is certified"]
    if any(one.guess_known and not one.unguessed for one in more):
        told.append("those that are recognisable are too few for the level broken")
    if unguessed := sum(one.unguessed for one in more):
        told.append(f"no baseline ended on {unguessed:,} of those that are recognisable")
    if not all(one.guess_known for one in more):
        told.append("without a guess on record chance cannot be told")
    return f": {', '.join(told)}; another attack may still break {'it' if len(rows) == 1 else 'them'}"


def _counted(row: MatrixRow) -> str:
    """`mixup 3 of 8, without the update 1 and unknown of 2 more, 2 certified`, less what is nought."""
    if row.counts is None or not row.counts.ended:
        return row.name
    told = f"{row.name} {row.counts.recognisable:,} of {row.counts.images:,}"
    unknown = f"unknown of {row.counts.unguessed:,} more" if row.counts.unguessed else ""
    if row.counts.guessed or unknown:
        told += f", without the update {' and '.join(filter(None, (f'{row.counts.guessed:,}', unknown)))}"
    return told + (f", {row.counts.certified:,} certified" if row.counts.certified else "")


def _as_seen(names: list[str]) -> str:
    if not names:
        return ""
    return (
        f"Under {listed(names)} images came out as the model saw them, transformed: look at them, PSNR does not tell."
    )


def _most_accurate(matrix: Matrix, rows: list[MatrixRow]) -> str:
    kept = [row for row in rows if row.accuracy is not None]
    if not kept:
        return ""
    best = max(kept, key=lambda row: row.accuracy or 0.0)
    against = reference(matrix, best)
    others = [row for row in kept if row is not best and _alike(best, row, matrix.test_pictures)]
    told = f"Of the open ones the most accurate is {best.name} with {percent(best.accuracy)}"
    if others:
        few, named = few_seeds(best.accuracies, *(row.accuracies for row in others)), count(len(others), "other")
        alike = f"may be as accurate: {few}" if few else "as accurate, as far as chance lets one tell"
        told += f" ({named} {alike})"
    if against is None or against.accuracy is None or best.accuracy is None:
        return f"{told}."
    told += f", against {percent(against.accuracy)} without a defense"
    within = resolution(best, against, matrix.test_pictures)
    if within is None:
        return f"{told}."
    margin = f"± {100 * within:.1f} points"
    if _alike(best, against, matrix.test_pictures):
        few = few_seeds(best.accuracies, against.accuracies)
        return f"{told}: no more than chance explains ({margin}{f'; {few}' if few else ''})."
    return f"{told}: {100 * (best.accuracy - against.accuracy):+.1f} points ({margin} by chance)."


def _alike(one: MatrixRow, other: MatrixRow, test_pictures: int | None) -> bool:
    within = resolution(one, other, test_pictures)
    apart = abs((one.accuracy or 0.0) - (other.accuracy or 0.0))
    return apart == 0 if within is None else apart <= within


def _undefended(row: MatrixRow) -> str:
    assert row.counts is not None
    told = f"Without a defense: {row.level}, {counts_text(row.counts)}"
    if row.strongest is not None:
        told += f"; {row.strongest.attack} reaches {leakage_text(row.leakage or row.strongest.leakage)} dB on average"
    same = f" As the model without a defense is {row.level} itself, these attacks cannot tell what a defense adds."
    return f"{told}.{'' if row.level == 'broken' else same}"
