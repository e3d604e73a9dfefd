"""Measures of which differences are told: what a record holds of them, and the paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from experiments.studies.mjp_training.scales import TrainingScale
from experiments.studies.mjp_training.tables import Measured, Record
from experiments.studies.mjp_training.variants import TABLE_4, TABLE_8

PERCENT = 100.0

Measures = Mapping[str, Measured]
"""By recipe; the first is what the others are compared with."""


@dataclass(frozen=True)
class Compared:
    """A measure of which differences are told, and the paper's by variant.

    Attributes:
        key: of the CSV's column.
        of: its value in a record; None where the model has none.
        form: of a value, without a sign.
    """

    key: str
    title: str
    of: Callable[[Record], float | None]
    paper: Mapping[str, float]
    form: str


def compared(scale: TrainingScale) -> list[Compared]:
    """Accuracy, Consistency at the headline's ratio, and the regression of positions."""

    def consistency(record: Record) -> float | None:
        (point,) = [point for point in record["jigsaw"]["points"] if point["ratio"] == scale.headline]
        return PERCENT * float(point["consistency"]["mean"])

    def regression(side: str) -> Callable[[Record], float | None]:
        return lambda record: record["position"] and float(record["position"][f"mae_{side}"]["mean"])

    return [
        Compared("top1", "top-1 (%)", lambda record: PERCENT * record["top1"], _column(TABLE_4, 0), ".1f"),
        Compared("consistency", f"Consistency (%) at {scale.headline:g}", consistency, _column(TABLE_4, 1), ".1f"),
        Compared("mae_1d", "MAE 1D", regression("1d"), _column(TABLE_8, 0), ".3f"),
        Compared("mae_2d", "MAE 2D", regression("2d"), _column(TABLE_8, 1), ".3f"),
    ]


def _column(table: Mapping[str, tuple[float, ...]], place: int) -> dict[str, float]:
    return {name: numbers[place] for name, numbers in table.items()}
