"""The leakage matrix in files: `matrix.json` and `matrix.csv`, and `matrix.html` and PNGs from the first."""

import csv
import io
import json
from pathlib import Path

from fedsim.report.matrix import wording as matrix_wording
from fedsim.report.matrix.cells import Matrix, MatrixCell, MatrixRow
from fedsim.report.matrix.figures import (
    FILLS,
    Point,
    baseline_of,
    heat_map_png,
    points_of,
    privacy_utility_png,
    privacy_utility_svg,
)
from fedsim.report.matrix.verdict import difference, verdicts, why_unplaced
from fedsim.report.pages import filled
from fedsim.report.run.images.counts import Counts
from fedsim.report.thresholds import EXACT, GUESS_MARGIN, RECOGNISABLE
from fedsim.storage.durable import write_text, write_whole
from fedsim.storage.json_objects import DamagedFileError, read_object

COLUMNS = (
    "defense",
    "state",
    "attack",
    "status",
    "private_psnr",
    "leakage",
    "baseline",
    "gain",
    "recognised",
    "certified",
    "recognisable",
    "guessed",
    "unguessed",
    "images",
    "label_exact",
    "label_share",
    "labelled",
    "pictures",
    "rebuilt",
    "done",
    "refused",
    "failed",
    "seconds",
    "strongest",
    "batch",
    "blind",
    "as_seen",
    "defended",
    "row_leakage",
    "level",
    "gamma",
    "row_certified",
    "row_recognisable",
    "row_guessed",
    "row_unguessed",
    "row_images",
    "accuracy",
    "spread",
    "train_seconds",
    "pareto",
    "mismatch",
    "reason",
)

PLOT = "privacy_utility"


def write_matrix(matrix: Matrix, folder: Path) -> None:
    """The numbers: `matrix.json` and `matrix.csv`, each whole or as it was."""
    write_text(folder / "matrix.json", json.dumps(matrix.to_dict(), indent=1))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for row in matrix.rows:
        writer.writerows(_csv_line(row, cell) for cell in row.cells)
    write_text(folder / "matrix.csv", text.getvalue())


def build_matrix_report(folder: Path) -> Path:
    """Draw `matrix.json` and return the page's path.

    Raises:
        FileNotFoundError: there is no `matrix.json` in the folder.
        DamagedFileError: it holds no matrix.
    """
    path = folder / "matrix.json"
    try:
        matrix = Matrix.from_dict(read_object(path))
    except (KeyError, TypeError) as error:
        raise DamagedFileError(path, "a matrix's numbers") from error
    plots = _plots(matrix)
    pictures = _write_images(matrix, plots, folder)
    page = filled(
        "matrix.html.j2",
        matrix=matrix,
        baseline=baseline_of(matrix.rows),
        exact=EXACT,
        recognisable=RECOGNISABLE,
        margin=GUESS_MARGIN,
        levels=matrix_wording.LEVELS,
        fills=FILLS,
        fronts=[
            (batch, privacy_utility_svg(points, baseline_of(matrix.rows_of(batch)), name.replace("_", "-")))
            for name, (batch, points) in plots.items()
        ],
        unplotted=[(row.name, why) for row in matrix.rows if (why := why_unplaced(row))],
        refusals=_refusals(matrix),
        few=matrix_wording.few(matrix),
        differences={row.name: difference(matrix, row) for row in matrix.rows},
        pictures=pictures,
        verdicts=verdicts(matrix),
    )
    return write_text(folder / "matrix.html", page)


def _plots(matrix: Matrix) -> dict[str, tuple[int | None, list[Point]]]:
    """A plot for each size of an update, by its file's name: accuracies and leakages of others do not compare."""
    plots = [(batch, points_of(matrix, batch)) for batch in matrix.batches]
    drawn = [(batch, points) for batch, points in plots if points]
    return {PLOT if number == 0 else f"{PLOT}_{plot[0]}": plot for number, plot in enumerate(drawn)}


def _write_images(matrix: Matrix, plots: dict[str, tuple[int | None, list[Point]]], folder: Path) -> list[str]:
    """Names of the PNGs in the folder; those of an earlier call that are none any more are removed."""
    pictures = {
        f"{name}.png": privacy_utility_png(points, baseline_of(matrix.rows_of(batch)))
        for name, (batch, points) in plots.items()
    }
    heat_map = heat_map_png(matrix)
    if heat_map is not None:
        pictures = {"heat_map.png": heat_map, **pictures}
    for path in folder.glob(f"{PLOT}*.png"):
        if path.name not in pictures:
            path.unlink()
    for name, content in pictures.items():
        write_whole(folder / name, content, durable=False)
    return list(pictures)


def _csv_line(row: MatrixRow, cell: MatrixCell) -> dict[str, object]:
    values = {column: getattr(cell, column, None) for column in COLUMNS}
    values |= _flat(cell.counts) | _flat(row.counts, "row_") | {"level": row.level, "gamma": row.gamma}
    values |= {"defense": row.name, "accuracy": row.accuracy, "spread": row.spread, "train_seconds": row.train_seconds}
    values |= {"defended": row.defended, "mismatch": row.mismatch, "row_leakage": row.leakage}
    values |= {"pareto": row.pareto, "strongest": cell == row.strongest_in(cell.state)}
    return {column: "" if value is None else value for column, value in values.items()}


def _flat(counts: Counts | None, of: str = "") -> dict[str, object]:
    """Without the number of attacks that ended, which `done` tells."""
    names = ("certified", "recognisable", "guessed", "unguessed", "images")
    return {} if counts is None else {f"{of}{name}": getattr(counts, name) for name in names}


def _refusals(matrix: Matrix) -> list[tuple[str, str, list[str]]]:
    """(attack, reason, defenses) of cells where an attack did not run, so that no reason hides in a tooltip."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in matrix.rows:
        for cell in row.cells:
            if cell.status in ("refused", "failed"):
                names = groups.setdefault((cell.attack, cell.reason), [])
                names += [row.name] if row.name not in names else []
    return [(attack, reason, names) for (attack, reason), names in sorted(groups.items())]
