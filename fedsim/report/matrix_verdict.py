"""A leakage matrix in sentences, and how large a difference of two accuracies must be to be one."""

from fedsim.report.chance import accuracy_error, accuracy_reach, chance_between
from fedsim.report.matrix_cells import Matrix, Row
from fedsim.report.matrix_wording import leakage_text
from fedsim.report.wording import count, listed, percent


def standard_error(row: Row, test_pictures: int | None) -> float | None:
    """Of the row's accuracy, in [0, 1], to be drawn; None where it is not known."""
    return accuracy_error(row.accuracies, test_pictures)


def resolution(one: Row, other: Row, test_pictures: int | None) -> float | None:
    """The smallest difference of two accuracies that chance does not explain; None where no error is known."""
    return chance_between(*(accuracy_reach(row.accuracies, test_pictures) for row in (one, other)))


def reference(matrix: Matrix, batch: int | None) -> Row | None:
    """The undefended row with updates of this size."""
    return next((row for row in matrix.rows_of(batch) if not row.defended), None)


def difference(matrix: Matrix, row: Row) -> str:
    """Points of accuracy that the row has over its undefended one, with what chance may do: `-3.1 ± 4.2`."""
    against = reference(matrix, row.batch)
    if not row.defended or against is None or row.accuracy is None or against.accuracy is None:
        return ""
    within = resolution(row, against, matrix.test_pictures)
    points = f"{100 * (row.accuracy - against.accuracy):+.1f}"
    return points if within is None else f"{points} ± {100 * within:.1f}"


def verdicts(matrix: Matrix) -> list[str]:
    """What a reader takes home who reads nothing else: a paragraph for each size of an update."""
    told = [_verdict(matrix, batch) for batch in matrix.batches]
    if not matrix.reading:
        return ["No attack was asked for, baselines alone."]
    told = [text for text in told if text] or ["Nothing has been measured yet."]
    if any(cell.rebuilt and cell.as_seen is None for row in matrix.rows if row.defended for cell in row.cells):
        told.append(
            "An earlier version did not count what came out as the model saw it: call fedsim-matrix again here."
        )
    return told


def why_unplaced(row: Row) -> str:
    """Why the row has no place between accuracy and leakage; empty for one that has."""
    if row.placed:
        return ""
    stages = {f"training, seed {seed}": stage for seed, stage in row.trainings.items()}
    stages |= {f"audit, {state}": stage for state, stage in row.audits.items()}
    told = [row.mismatch]
    told += ["pictures came out as the model saw them: what an eye finds in them PSNR does not tell"] * row.as_seen
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
    rows = [row for row in matrix.rows_of(batch) if row.leakage is not None and not row.mismatch]
    defenses, against = [row for row in rows if row.defended], reference(matrix, batch)
    told = []
    if defenses:
        safe = [row for row in defenses if row.recognised == 0 and not row.as_seen]
        number = len(matrix.reading)
        attacks = "the one attack" if number == 1 else f"any of {count(number, 'attack')}"
        words = f"under {len(safe)} of {count(len(defenses), 'defense')} no picture is recognisable to {attacks}"
        told.append(words + _most_accurate(matrix, safe, against))
        told += _as_seen([row for row in defenses if row.as_seen])
    if against is not None and against.leakage is not None:
        told.append(_undefended(against))
    where = "" if batch is None else f"updates of {count(batch, 'picture')}: "
    text = f"{where}{'; '.join(told)}."
    return text[0].upper() + text[1:] if told else ""


def _as_seen(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    names = listed([row.name for row in rows])
    return [f"under {names} pictures came out as the model saw them, transformed: look at them, PSNR does not tell"]


def _most_accurate(matrix: Matrix, safe: list[Row], against: Row | None) -> str:
    kept = [row for row in safe if row.accuracy is not None]
    if not kept:
        return ""
    best = max(kept, key=lambda row: row.accuracy or 0.0)
    others = [row for row in kept if row is not best and _alike(best, row, matrix.test_pictures)]
    told = f", and the most accurate of them is {best.name} with {percent(best.accuracy)}"
    if others:
        told += f" ({count(len(others), 'other')} as accurate, as far as chance lets one tell)"
    if against is None or against.accuracy is None or best.accuracy is None:
        return told
    told += f", against {percent(against.accuracy)} without a defense"
    within = resolution(best, against, matrix.test_pictures)
    if within is None:
        return told
    margin = f"± {100 * within:.1f} points"
    if _alike(best, against, matrix.test_pictures):
        return f"{told}: no more than chance explains ({margin})"
    return f"{told}: {100 * (best.accuracy - against.accuracy):+.1f} points ({margin} by chance)"


def _alike(one: Row, other: Row, test_pictures: int | None) -> bool:
    within = resolution(one, other, test_pictures)
    apart = abs((one.accuracy or 0.0) - (other.accuracy or 0.0))
    return apart == 0 if within is None else apart <= within


def _undefended(row: Row) -> str:
    if row.strongest is None:
        return "without a defense no attack does better than a guess either"
    shown = f"{row.strongest.attack} reaches {leakage_text(row.leakage)} dB"
    if not row.recognised:
        return f"without a defense no picture is recognisable either ({shown})"
    return f"without a defense {shown}, and up to {percent(row.recognised)} of the pictures are recognisable"
