"""MJP's Tables 3, 4, 6 and 8 from the records of `fedsim-measure`, with the paper's numbers in the next column."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from defenses.mjp.mask import blockwise_masks
from experiments.studies.harness.ranking import sentence
from experiments.studies.harness.study import Table, spread_of
from experiments.studies.harness.tables import Value
from experiments.studies.mjp_training.scales import TrainingScale
from experiments.studies.mjp_training.variants import (
    DIMENSIONS,
    RATIOS,
    TABLE_3,
    TABLE_4,
    TABLE_6,
    TABLE_8,
    Variant,
    of_ratio,
)
from fedsim.determinism import torch_generator

Record = Mapping[str, Any]
MASKS_DRAWN = 1000
"""For the share of positions that a ratio masks in truth."""


@dataclass(frozen=True)
class Measured:
    """Records of the trained variants, one for each seed, in the order of the plan."""

    scale: TrainingScale
    variants: Sequence[Variant]
    records: Mapping[str, Sequence[Record]]

    @property
    def grid(self) -> tuple[int, int]:
        """The grid of patches; all variants have the same."""
        rows, columns = next(iter(self.records.values()))[0]["jigsaw"]["grid"]
        return int(rows), int(columns)


@dataclass(frozen=True)
class MeasureColumn:
    """A column of a table: a measure of one record, and what the paper has for it.

    Attributes:
        key: of the CSV's column.
        of: the value of a record; None where the model has none.
        paper: by row; None: the paper has no such column.
        measure: what it shares with columns that depend on it, such as cumulative ones, whose order is told together;
            None: it stands alone.
    """

    key: str
    title: str
    of: Callable[[Record], float | None]
    paper: Mapping[Any, float] | None = None
    form: str = ".1f"
    measure: str | None = None


@dataclass(frozen=True)
class MeasureRow:
    """A line of a table.

    Attributes:
        paper: by what the paper's numbers are looked up.
        labels: the cells before the measures.
    """

    variant: str
    paper: Any
    labels: Sequence[str]


def tables(measured: Measured) -> tuple[list[Table], list[str]]:
    """The tables for which a model was trained, and for each the sentences on its order."""
    made: list[Table] = []
    said: list[str] = []
    for build in (_table_3, _table_4, _table_6, _table_8):
        name, title, header, rows, columns = build(measured)
        rows = [row for row in rows if row.variant in measured.records]
        if not rows:
            continue
        made.append(_table(f"mjp_{name}", title, header, rows, columns, measured))
        said += _orders(title.split(":")[0], rows, columns, measured)
        said += _chance(title.split(":")[0], rows, columns, measured)
    return made, said


Built = tuple[str, str, list[str], list[MeasureRow], list[MeasureColumn]]


def compared(scale: TrainingScale) -> list[MeasureColumn]:
    """What recipes are compared by: accuracy, Consistency at the headline's ratio, and the regression of positions."""
    consistency = _at_ratios(scale, "consistency", "Consistency (%)", _numbers(TABLE_4, 1), 100.0)
    headline = next(column for column in consistency if column.paper is not None)
    return [_top1(_numbers(TABLE_4, 0)), replace(headline, key="consistency"), *_regressions()]


def _numbers(table: Mapping[Any, Sequence[float]], place: int) -> dict[Any, float]:
    """A column of the paper's table."""
    return {row: numbers[place] for row, numbers in table.items()}


def _table_3(measured: Measured) -> Built:
    ratio = measured.scale.ratio
    rows = [
        MeasureRow(of_ratio(share, ratio), share, [f"{share:g}", f"{100 * true_share(measured.grid, share):.1f}"])
        for share in RATIOS
    ]
    columns = [
        _top1(_numbers(TABLE_3, 0)),
        *_at_ratios(measured.scale, "diff_norm", "Diff. Norm.", _numbers(TABLE_3, 1), 1.0, ".2f"),
        *_at_ratios(measured.scale, "consistency", "Consistency (%)", _numbers(TABLE_3, 2), 100.0),
    ]
    return "table3", "Table 3: MJP over the mask ratio of its training", ["ratio", "masked (%)"], rows, columns


def _table_4(measured: Measured) -> Built:
    labels = {variant.name: variant.label for variant in measured.variants}
    rows = [MeasureRow(letter, letter, [letter, labels[letter]]) for letter in TABLE_4 if letter in labels]
    columns = [
        _top1(_numbers(TABLE_4, 0)),
        *_at_ratios(measured.scale, "consistency", "Consistency (%)", _numbers(TABLE_4, 1), 100.0),
    ]
    title = f"Table 4: the parts of MJP, ratio {measured.scale.ratio:g} (the paper's: 0.03)"
    return "table4", title, ["", "variant"], rows, columns


def _table_6(measured: Measured) -> Built:
    columns = [
        MeasureColumn(
            f"explained_variance_{count}",
            f"{count}D (%)",
            _scaled(("position", "explained_variance", str(count)), 100.0),
            _numbers(TABLE_6, place),
            measure="explained variance (%)",
        )
        for place, count in enumerate(DIMENSIONS)
    ]
    rows = [MeasureRow(letter, letter, [letter]) for letter in TABLE_6]
    return "table6", "Table 6: variance of the position embeddings in 3 to 7 dimensions", ["variant"], rows, columns


def _table_8(measured: Measured) -> Built:
    rows = [MeasureRow(letter, letter, [letter]) for letter in TABLE_8]
    title = f"Table 8: position regression from the embeddings, {measured.scale.folds}-fold"
    return "table8", title, ["variant"], rows, _regressions()


def _top1(paper: Mapping[Any, float]) -> MeasureColumn:
    return MeasureColumn("top1", "top-1 (%)", _scaled(("top1",), 100.0), paper)


def _regressions() -> list[MeasureColumn]:
    return [
        MeasureColumn(
            f"mae_{side}",
            f"MAE {side.upper()}",
            _scaled(("position", f"mae_{side}", "mean")),
            _numbers(TABLE_8, place),
            ".3f",
        )
        for place, side in enumerate(("1d", "2d"))
    ]


def _at_ratios(
    scale: TrainingScale, key: str, title: str, paper: Mapping[Any, float], factor: float, form: str = ".1f"
) -> list[MeasureColumn]:
    """A column for each mask ratio of the jigsawed pictures, the paper's beside the headline's."""

    def of(ratio: float) -> Callable[[Record], float | None]:
        def value(record: Record) -> float | None:
            (point,) = [point for point in record["jigsaw"]["points"] if point["ratio"] == ratio]
            return None if point[key] is None else factor * float(point[key]["mean"])

        return value

    return [
        MeasureColumn(
            f"{key}@{ratio:g}", f"{title} at {ratio:g}", of(ratio), paper if ratio == scale.headline else None, form
        )
        for ratio in scale.measured
    ]


def _scaled(keys: Sequence[str], factor: float = 1.0) -> Callable[[Record], float | None]:
    def value(record: Record) -> float | None:
        found: Any = record
        for key in keys:
            found = None if found is None else found[key]
        return None if found is None else factor * float(found)

    return value


def _table(
    name: str,
    title: str,
    header: Sequence[str],
    rows: Sequence[MeasureRow],
    columns: Sequence[MeasureColumn],
    measured: Measured,
) -> Table:
    heads, names = list(header), ["variant", "seed", "row"]
    for column in columns:
        heads += [column.title, *(["paper"] if column.paper is not None else [])]
        names += [column.key, *([f"paper_{column.key}"] if column.paper is not None else [])]
    texts, record = [], []
    for row in rows:
        texts.append([*row.labels, *(cell for column in columns for cell in _cells(column, row, measured))])
        for one in measured.records[row.variant]:
            line: list[Value] = [row.variant, one["seed"], row.paper]
            for column in columns:
                line += [column.of(one), *([column.paper[row.paper]] if column.paper is not None else [])]
            record.append(line)
    return Table(name, title, heads, texts, (names, record))


def _cells(column: MeasureColumn, row: MeasureRow, measured: Measured) -> list[str]:
    values = _values(column, row, measured)
    ours = spread_of(values, column.form) if values else "-"
    return [ours] if column.paper is None else [ours, format(column.paper[row.paper], column.form)]


def _values(column: MeasureColumn, row: MeasureRow, measured: Measured) -> list[float]:
    """Over the seeds."""
    return [value for record in measured.records[row.variant] if (value := column.of(record)) is not None]


def _orders(table: str, rows: Sequence[MeasureRow], columns: Sequence[MeasureColumn], measured: Measured) -> list[str]:
    """A sentence for each measure that the paper has too."""
    by_measure: dict[str, list[MeasureColumn]] = {}
    for column in columns:
        if column.paper is not None:
            by_measure.setdefault(column.measure or column.title, []).append(column)
    said = []
    for measure, members in by_measure.items():
        compared = []
        for column in members:
            known = [(row, values) for row in rows if (values := _values(column, row, measured))]
            ours = [sum(values) / len(values) for _, values in known]
            compared.append((ours, [_of_paper(column, row) for row, _ in known]))
        said.append(sentence(f"{table}, {measure}", compared, members[0].form))
    return said


def _chance(table: str, rows: Sequence[MeasureRow], columns: Sequence[MeasureColumn], measured: Measured) -> list[str]:
    """What accuracy cannot settle: the paper's models differ by little."""
    if columns[0].key != "top1":
        return []
    records = [record for row in rows for record in measured.records[row.variant]]
    images, top1 = records[0]["pictures"], sum(record["top1"] for record in records) / len(records)
    error = 100.0 * math.sqrt(top1 * (1.0 - top1) / images)
    paper = [_of_paper(columns[0], row) for row in rows]
    between = max(paper) - min(paper)
    note = "" if between > 4.0 * error else ": the order of such differences is mostly chance here"
    spread = f"one standard error of {images} test pictures is {error:.1f} points"
    return [f"{table}, {columns[0].title}: {spread}, the paper's rows lie within {between:.1f}{note}."]


def _of_paper(column: MeasureColumn, row: MeasureRow) -> float:
    assert column.paper is not None
    return column.paper[row.paper]


def true_share(grid: tuple[int, int], ratio: float) -> float:
    """Share of positions that are masked at a ratio: blocks leave some of it unused."""
    masks = blockwise_masks(MASKS_DRAWN, grid, ratio, None, torch_generator(0, "true_share", str(ratio)))
    return float(masks.double().mean())
