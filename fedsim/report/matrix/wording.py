"""The cells of a leakage matrix as people read them."""

from fedsim.metrics.chance import accuracy_reach
from fedsim.report.matrix.cells import Matrix, MatrixCell, MatrixRow
from fedsim.report.run.images.counts import Counts
from fedsim.report.thresholds import (
    EXACT,
    FEW_OBSERVED_IMAGES,
    FEW_TEST_IMAGES,
    GUESS_MARGIN,
    RECOGNISABLE,
)
from fedsim.report.wording import DASH, graded, likeness, listed, percent

LEVELS = {
    "guess": f"no better than a guess (+{GUESS_MARGIN:.0f} dB)",
    "traces": f"traces, below {RECOGNISABLE:.0f} dB",
    "recognisable": f"recognisable, {RECOGNISABLE:.0f} to 30 dB",
    "nearly-identical": "nearly identical, 30 to 40 dB",
    "indistinguishable": "indistinguishable, from 40 dB",
    "as-seen": "as the model saw them, transformed: look at them",
    "labels": "labels alone",
    "refused": "not applicable",
}


def leakage_level(leakage: float | None, baseline: float | None, recognised: bool = False) -> str:
    """The class of a value for colours, one of `LEVELS`; `pending` where there is none.

    Args:
        recognised: an image behind the value is recognisable, which a mean at the guess hides.
    """
    if leakage is None:
        return "pending"
    guessed = baseline is not None and leakage < baseline + GUESS_MARGIN
    if guessed and not recognised:
        return "guess"
    if leakage < RECOGNISABLE:
        return "traces"
    return "recognisable" if guessed else likeness(leakage).replace(" ", "-")


def leakage_text(leakage: float | None) -> str:
    if leakage is None:
        return DASH
    if leakage >= EXACT - 0.05:
        return f"≥ {EXACT:.0f}"
    return graded(leakage).removesuffix(" dB")


def cell_level(cell: MatrixCell) -> str:
    if cell.status != "done":
        return cell.status
    if cell.leakage is None:
        return "labels" if cell.label_share is not None else "guess"
    if cell.hidden:
        return "as-seen"
    return leakage_level(cell.leakage, cell.baseline, bool(cell.recognised))


def strongest_level(row: MatrixRow, state: str) -> str:
    """The class of what the strongest attack of a row leaves: an image that any of them makes recognisable tells."""
    if row.seen_in(state):
        return "as-seen"
    recognised = any(cell.recognised for cell in row.cells if cell.state == state and not cell.blind)
    return leakage_level(row.leakage_in(state), row.baseline, recognised)


def cell_text(cell: MatrixCell) -> str:
    """What stands in the square: dB, the share of labels, or a word."""
    if cell.status == "done":
        if cell.leakage is not None:
            return f"{leakage_text(cell.leakage)} seen" if cell.hidden else leakage_text(cell.leakage)
        return "none" if cell.label_share is None else f"labels {percent(cell.label_share).replace(' ', '')}"
    return {"refused": "n/a", "failed": "failed"}.get(cell.status, "…")


def cell_story(cell: MatrixCell) -> str:
    """Everything about a cell in one line, for a tooltip and for who hears the page."""
    parts = []
    if cell.rebuilt:
        parts.append(f"{cell.rebuilt} of {cell.pictures} images rebuilt")
    if cell.private_psnr is not None:
        parts.append(f"mean PSNR of those {graded(cell.private_psnr)}")
    if cell.gain is not None:
        parts.append(f"{cell.gain:+.1f} dB against a guess")
    if cell.counts is not None and cell.counts.ended:
        parts.append(counts_text(cell.counts))
    if cell.as_seen:
        parts.append(f"{cell.as_seen} of {cell.pictures} as the model saw them, changed by the client: look at them")
    if cell.label_share is not None:
        some = "" if cell.labelled == cell.updates else f" in {cell.labelled} of {cell.updates} updates"
        parts.append(f"{percent(cell.label_share)} of the labels{some}")
    if cell.seconds is not None:
        parts.append(f"{cell.seconds:.2g} s an update")
    updates = {"refused": cell.refused, "failed": cell.failed}
    parts += [f"{what} on {count} of {cell.updates}" for what, count in updates.items() if count]
    if cell.reason:
        parts.append(cell.reason)
    return "; ".join(parts) or "not measured yet"


def counts_text(counts: Counts) -> str:
    """Behind a level: `3 of 8 recognisable, without the update 0 of 8, 1 certified; on 2 more every attack refused`."""
    beside = [
        f"on {number:,} more every attack {what}"
        for what, number in (("refused", counts.refused), ("failed", counts.failed))
        if number
    ]
    if not counts.ended:
        return "; ".join(["no image tested", *beside]).replace(" more", "")
    without = f"{counts.guessed:,} of {counts.images:,}" if counts.guess_known else "not recorded"
    without += f" and unknown of {counts.unguessed:,} more" if counts.unguessed else ""
    told = f"{counts.recognisable:,} of {counts.images:,} recognisable, without the update {without}"
    return "; ".join([f"{told}, {counts.certified:,} certified", *beside])


def few(matrix: Matrix) -> list[tuple[str, str]]:
    """(what there is little of, how much that leaves to chance): for a tile or a line each."""
    found = []
    if matrix.test_pictures is not None and matrix.test_pictures < FEW_TEST_IMAGES:
        found.append(("Few test images", f"{_only(matrix.test_pictures)} of the accuracy"))
    if any(row.accuracies and accuracy_reach(row.accuracies, matrix.test_pictures) is None for row in matrix.rows):
        found.append(("Test images", "number unknown: how far chance moves an accuracy is not known"))
    observed = {row.name: row.counts.images for row in matrix.rows if row.counts is not None and row.counts.images}
    scarce = {name: images for name, images in observed.items() if images < FEW_OBSERVED_IMAGES}
    if scarce:
        where = "" if len(scarce) == len(observed) else f" in {listed(list(scarce))}"
        found.append(("Few observed images", f"{_only(*scarce.values())} of all{where}"))
    return found


def _only(*numbers: int) -> str:
    least, most = min(numbers), max(numbers)
    upto = "" if least == most else f"{least} to "
    return f"{upto}{most}, each {'up to ' if upto else ''}{percent(1 / max(1, least))}"
