"""The records of `measures.json`, and how to read one figure of several runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedsim.metrics.jigsaw import Spread

Record = Mapping[str, Any]
"""One run of measures.json."""


def grouped(runs: Sequence[Record]) -> dict[str, list[Record]]:
    """Runs by name: those of one name are repetitions with other seeds."""
    groups: dict[str, list[Record]] = {}
    for run in runs:
        groups.setdefault(str(run["name"]), []).append(run)
    return groups


def over_runs(values: Iterable[Any]) -> Spread | None:
    """A measure over the runs of one name (numbers, or spreads); of a single run, its own spread. None without any."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    if len(found) == 1 and isinstance(found[0], Mapping):
        return Spread(**found[0])
    return Spread.of([float(item["mean"]) if isinstance(item, Mapping) else float(item) for item in found])


def at(run: Record, *keys: str) -> Any:
    """The value under these keys; None where one is missing."""
    value: Any = run
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def point(run: Record, ratio: float) -> Record:
    """The measures at one mask ratio, or nothing."""
    found = [row for row in at(run, "jigsaw", "points") or [] if row["ratio"] == ratio]
    return found[0] if found else {}


def ratios(runs: Sequence[Record]) -> list[float]:
    return sorted({row["ratio"] for run in runs for row in at(run, "jigsaw", "points") or []})


def mean_error(run: Record, corruption: str) -> float | None:
    """Over the severities."""
    errors = at(run, "corruptions", "errors", corruption)
    return None if not errors else math.fsum(errors) / len(errors)
