"""Matrices from the lines of their audits, as the command makes them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.report.matrix.cells import Matrix, MatrixColumn, MatrixRow, RowState, with_front
from fedsim.report.matrix.files import build_matrix_report, write_matrix
from fedsim.report.matrix.read import BASELINE, read_cells, read_counts
from fedsim.report.matrix.verdict import verdicts
from fedsim.report.matrix.wording import few
from fedsim.report.run.images.counts import Counts
from tests.verdicts.case import PlannedRun, read_run_page, write
from tests.verdicts.lines import Line
from tests.verdicts.pages import Said, read_matrix_page


@dataclass(frozen=True)
class PlannedRow:
    """A row: the lines of its audits, in the order of the matrix's states.

    Attributes:
        updates: of each audit when it is finished; None: as many as there are.
        refused: why the audit itself could not be made.
    """

    audits: Sequence[Sequence[Line]]
    defended: bool = True
    accuracy: float | None = 0.8
    updates: int | None = None
    refused: str = ""


def of_matrix(
    rows: dict[str, PlannedRow],
    attacks: Sequence[str] = ("rebuild",),
    blind: Sequence[str] = (),
    tested: int | None = 1400,
    old: bool = False,
) -> Callable[[Path], Said]:
    """Build a matrix, and read its page; each row's audit is a run folder that is read as the command reads it."""

    def make(folder: Path) -> Said:
        states = ("initial", "trained")[: max(len(entry.audits) for entry in rows.values())]
        columns = tuple(MatrixColumn(name, name, "", name in blind) for name in attacks)
        made = [_row(folder, number, name, entry, states, columns) for number, (name, entry) in enumerate(rows.items())]
        finished = all(stage.status != "pending" for row in made for stage in row.audits.values())
        matrix = Matrix("m", (), columns, states, with_front(made), tested, finished, 12.0)
        write_matrix(matrix, folder)
        if old:
            _age(folder / "matrix.json")
        html = build_matrix_report(folder).read_text(encoding="utf-8")
        pages = {
            name: read_run_page(audit, "")
            for number, (name, entry) in enumerate(rows.items())
            if len(entry.audits) == 1 and not old and (audit := folder / f"row-{number}-initial").is_dir()
        }
        others = {name: (page.levels[""], _counted(page)) for name, page in pages.items()}
        # As the command ends.
        terminal = "\n".join([*verdicts(matrix), *(": ".join(one) for one in few(matrix))])
        return read_matrix_page(
            html, terminal, json.loads((folder / "matrix.json").read_text(encoding="utf-8")), others
        )

    return make


def _counted(page: Said) -> str:
    """`3 of 20`: images that the run's `summary.json` has as recognisable, in either way; empty where none counts."""
    stated = page.summary["verdict"]
    if stated["level"] == "not tested":
        return ""
    return f"{stated['recognisable'] + stated['recognisable_as_seen']} of {stated['images']}"


def _age(path: Path) -> None:
    """As an earlier version wrote it, without counts."""
    values = json.loads(path.read_text(encoding="utf-8"))
    for one in (*values["rows"], *(cell for entry in values["rows"] for cell in entry["cells"])):
        one.pop("counts", None)
    path.write_text(json.dumps(values), encoding="utf-8")


def _row(
    folder: Path, number: int, name: str, entry: PlannedRow, states: Sequence[str], columns: Sequence[MatrixColumn]
) -> MatrixRow:
    accuracies = () if entry.accuracy is None else (entry.accuracy,)
    if entry.refused:
        stopped = {state: RowState("refused", entry.refused) for state in states}
        return MatrixRow(name, defended=entry.defended, accuracies=accuracies, audits=stopped, counts=Counts())
    cells, stages, audits = [], {}, []
    for state, lines in zip(states, entry.audits, strict=True):
        audit = folder / f"row-{number}-{state}"
        write(PlannedRun(lines, kind="audit"), audit)
        audits.append(audit)
        marks = {image["image"]: image["guess_psnr"] for one in lines for image in one["images"]}
        (audit / BASELINE).write_text(json.dumps(marks), encoding="utf-8")
        updates = entry.updates or len({one["observation"] for one in lines})
        found = read_cells(audit, state, [column.name for column in columns], updates)
        cells += [replace(cell, blind=column.blind) for cell, column in zip(found, columns, strict=True)]
        stages[state] = RowState("done" if all(cell.status != "pending" for cell in found) else "pending")
    return MatrixRow(
        name,
        defended=entry.defended,
        accuracies=accuracies,
        trainings={"0": RowState("done")},
        audits=stages,
        cells=tuple(cells),
        counts=read_counts(audits, [one.name for one in columns], {one.name for one in columns if one.blind}),
    )
