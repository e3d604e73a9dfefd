"""What the study shows: recipes seed by seed, MJP beside the ViT alone, and the paper's tables once for each recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from experiments.studies.harness.intervals import CONFIDENCE, interval
from experiments.studies.harness.study import Page, Table
from experiments.studies.harness.tables import Value, number
from experiments.studies.mjp_training.scales import FedAvgScale
from experiments.studies.mjp_training.tables import MeasureColumn, Measured, Record, compared, tables

Measures = Mapping[str, Measured]
"""By recipe; the first is what the others are compared with."""

ALONE = "A"
"""The ViT without MJP."""
INTRODUCTION = (
    "MJP in FedAvg: {clients} clients, {rounds} rounds of one epoch, AdamW at {rate:g} on batches of {batch}, whose "
    "state begins anew in each round. `plain` takes images as they are at a constant rate; `augment` crops and flips "
    "them, `cosine` warms the rate up and decays it over all rounds, `both` does both. Runs of one seed share initial "
    "weights, partitions and the order of batches: differences are taken seed by seed, and ± behind them is the "
    "{confidence:.0%} interval of Student's t over {seeds} seeds; elsewhere ± is the standard deviation over seeds. "
    "Test pictures: {pictures}, the same for all of a seed. The paper's numbers stand beside, and are of another model "
    "and data."
)


def page(scale: FedAvgScale, measured: Measures, seeds: int, figures: Mapping[str, str]) -> Page:
    """All tables, and what their orders say."""
    pictures = next(iter(next(iter(measured.values())).records.values()))[0]["pictures"]
    about = {name: getattr(scale, name) for name in ("clients", "rounds", "rate", "batch")}
    introduction = INTRODUCTION.format(**about, confidence=CONFIDENCE, seeds=seeds, pictures=pictures)
    stacks, said = stacked(measured)
    made = [*between_recipes(scale, measured), *beside_alone(scale, measured), *stacks]
    title = "MJP in FedAvg, by recipe of training"
    return Page("mjp_training", title, introduction, made, [*said, *guess(measured), *scale.differs], figures)


def guess(measured: Measures) -> list[str]:
    """What errors of Table 8 are to be held against."""
    records = [record for members in measured.values() for group in members.records.values() for record in group]
    known = next((record["position"] for record in records if record["position"] is not None), None)
    if known is None:
        return []
    chance = f"{known['chance_1d']:.2f} places off in 1D and {known['chance_2d']:.2f} in 2D"
    return [f"Table 8: who knows nothing of an embedding and names the middle is {chance}."]


def between_recipes(scale: FedAvgScale, measured: Measures) -> list[Table]:
    """What each recipe changes, variant by variant; nothing where there is but one."""
    first, *others = measured
    lines = {
        (variant.name, recipe): (measured[recipe].records[variant.name], measured[first].records[variant.name])
        for variant in measured[first].variants
        for recipe in others
    }
    return _differences("mjp_recipes", f"Recipes beside `{first}`: differences seed by seed", scale, lines, None)


def beside_alone(scale: FedAvgScale, measured: Measures) -> list[Table]:
    """What MJP's variants change, recipe by recipe; nothing where the ViT alone was not trained."""
    lines = {
        (variant.name, recipe): (members.records[variant.name], members.records[ALONE])
        for recipe, members in measured.items()
        for variant in members.variants
        if ALONE in members.records and variant.name != ALONE
    }
    return _differences("mjp_alone", "MJP beside the ViT alone: differences seed by seed", scale, lines, ALONE)


Lines = Mapping[tuple[str, str], tuple[Sequence[Record], Sequence[Record]]]
"""By variant and recipe: the records of some models, and of those that are taken off them, seed by seed."""


def _differences(name: str, title: str, scale: FedAvgScale, lines: Lines, beside: str | None) -> list[Table]:
    """Mean differences with their intervals, where both have the measure; no table without lines.

    Args:
        beside: the variant whose numbers in the paper are taken off too; None: the paper has no such comparison.
    """
    columns = compared(scale)
    header, names = ["variant", "recipe"], ["variant", "recipe"]
    for column in columns:
        header += [column.title, *(["paper"] if beside else [])]
        names += [column.key, f"{column.key}_reach", *([f"paper_{column.key}"] if beside else [])]
    rows, record = [], []
    for labels, both in lines.items():
        cells, line = list(labels), list[Value](labels)
        for column in columns:
            pairs = [(column.of(one), column.of(other)) for one, other in zip(*both, strict=True)]
            values = [one - other for one, other in pairs if one is not None and other is not None]
            mean, reach = interval(values) if values else (None, None)
            cells.append(number(mean, f"+{column.form}") + ("" if reach is None else f" ± {reach:{column.form}}"))
            line += [mean, reach]
            if beside:
                paper = _of_paper(column, labels[0], beside)
                cells.append(number(paper, f"+{column.form}"))
                line.append(paper)
        rows.append(cells)
        record.append(line)
    return [Table(name, title, header, rows, (names, record))] if rows else []


def _of_paper(column: MeasureColumn, variant: str, beside: str) -> float | None:
    known = column.paper or {}
    return known[variant] - known[beside] if variant in known else None


def stacked(measured: Measures) -> tuple[list[Table], list[str]]:
    """The paper's tables, the recipes' rows under each other, and the sentences on their orders."""
    made: dict[str, Table] = {}
    said: list[str] = []
    for recipe, members in measured.items():
        own, sentences = tables(members)
        said += [f"{recipe}: {sentence}" for sentence in sentences]
        for table in own:
            names, lines = table.record
            header, rows = ["recipe", *table.header], [[recipe, *row] for row in table.rows]
            record = ["recipe", *names], [[recipe, *line] for line in lines]
            new = replace(table, name=f"{table.name}_recipes", header=header, rows=rows, record=record)
            made[table.name] = _joined(made[table.name], new) if table.name in made else new
    return list(made.values()), said


def _joined(upper: Table, lower: Table) -> Table:
    (names, above), (_, below) = upper.record, lower.record
    return replace(upper, rows=[*upper.rows, *lower.rows], record=(names, [*above, *below]))
