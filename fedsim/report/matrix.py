"""The leakage matrix in files: `matrix.json` and `matrix.csv`, and `matrix.html` and two PNGs from the first."""

import csv
import io
import json
from pathlib import Path

from fedsim.report import matrix_wording
from fedsim.report.matrix_cells import EXACT, Cell, Matrix, Row
from fedsim.report.matrix_figures import (
    FILLS,
    baseline_of,
    heat_map_png,
    points_of,
    privacy_utility_png,
    privacy_utility_svg,
)
from fedsim.report.render import _environment, _write
from fedsim.report.wording import percent

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
    "label_exact",
    "label_share",
    "pictures",
    "rebuilt",
    "done",
    "refused",
    "failed",
    "seconds",
    "strongest",
    "accuracy",
    "spread",
    "train_seconds",
    "pareto",
    "reason",
)


def write_matrix(matrix: Matrix, folder: Path) -> None:
    """The numbers: `matrix.json` and `matrix.csv`, each whole or as it was."""
    _write(json.dumps(matrix.to_dict(), indent=1), folder / "matrix.json")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for row in matrix.rows:
        writer.writerows(_csv_line(row, cell) for cell in row.cells)
    _write(text.getvalue(), folder / "matrix.csv")


def build_matrix_report(folder: Path) -> Path:
    """Draw `matrix.json` and return the page's path.

    Raises:
        FileNotFoundError: there is no `matrix.json` in the folder.
    """
    matrix = Matrix.from_dict(json.loads((folder / "matrix.json").read_text(encoding="utf-8")))
    points, baseline = points_of(matrix), baseline_of(matrix.rows)
    pictures = {
        "heat_map.png": heat_map_png(matrix),
        "privacy_utility.png": privacy_utility_png(points, baseline),
    }
    for name, content in pictures.items():
        if content is not None:
            partial = folder / f"{name}.partial"
            partial.write_bytes(content)
            partial.replace(folder / name)
    environment = _environment()
    for name in ("cell_level", "cell_text", "cell_story", "leakage_level", "leakage_text"):
        environment.filters[name] = getattr(matrix_wording, name)
    page = environment.get_template("matrix.html.j2").render(
        matrix=matrix,
        baseline=baseline,
        exact=EXACT,
        levels=matrix_wording.LEVELS,
        fills=FILLS,
        front=privacy_utility_svg(points, baseline),
        unplotted=[(row.name, _why_unplotted(row)) for row in matrix.rows if _why_unplotted(row)],
        refusals=_refusals(matrix),
        undefended=next((row for row in matrix.rows if row.name == "none"), None),
        pictures=[name for name, content in pictures.items() if content is not None],
        verdict=_verdict(matrix),
    )
    return _write(page, folder / "matrix.html")


def _csv_line(row: Row, cell: Cell) -> dict[str, object]:
    values = {column: getattr(cell, column, None) for column in COLUMNS}
    values |= {"defense": row.name, "accuracy": row.accuracy, "spread": row.spread, "train_seconds": row.train_seconds}
    values |= {"pareto": row.pareto, "strongest": cell == row.strongest_in(cell.state)}
    return {column: "" if value is None else value for column, value in values.items()}


def _why_unplotted(row: Row) -> str:
    """Empty for a row that is in the plot."""
    if row.accuracy is not None and row.leakage is not None:
        return ""
    stages = {f"training, seed {seed}": stage for seed, stage in row.trainings.items()}
    stages |= {f"audit, {state}": stage for state, stage in row.audits.items()}
    told = [f"{what}: {stage.status}, {stage.reason}" for what, stage in stages.items() if stage.reason]
    return "; ".join(dict.fromkeys(told)) or "not finished yet"


def _refusals(matrix: Matrix) -> list[tuple[str, str, list[str]]]:
    """(attack, reason, defenses) of cells where an attack did not run, so that no reason hides in a tooltip."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in matrix.rows:
        for cell in row.cells:
            if cell.status in ("refused", "failed"):
                names = groups.setdefault((cell.attack, cell.reason), [])
                names += [row.name] if row.name not in names else []
    return [(attack, reason, names) for (attack, reason), names in sorted(groups.items())]


def _verdict(matrix: Matrix) -> str:
    """One sentence for a reader who reads nothing else."""
    measured = [row for row in matrix.rows if row.leakage is not None]
    if not measured:
        return "Nothing has been measured yet."
    level = {row.name: matrix_wording.leakage_level(row.leakage, row.baseline) for row in measured}
    safe = [row for row in measured if level[row.name] in ("guess", "traces") and row.name != "none"]
    kept = [row for row in safe if row.accuracy is not None]
    undefended = next((row for row in measured if row.name == "none"), None)
    told = f"Of {len(measured)} rows, {len(safe)} keep the strongest of {len(matrix.attacks)} attacks below recognition"
    if not kept:
        return f"{told}."
    best = max(kept, key=lambda row: row.accuracy or 0.0)
    against = "" if undefended is None else f" against {percent(undefended.accuracy)} without a defense"
    return f"{told}; the most accurate of them is {best.name} with {percent(best.accuracy)}{against}."
