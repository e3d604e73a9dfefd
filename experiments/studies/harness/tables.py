"""Tables as Markdown and CSV."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.storage.durable import write_text

Value = str | int | float | None


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; what would break a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(_cell(text) for text in line) + " |\n" for line in lines)


def number(value: float | None, form: str = ".4f") -> str:
    """A number in this format; nothing for none."""
    return "" if value is None or math.isnan(value) else format(value, form)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
    """Full precision; an empty field for None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    write_text(path, text.getvalue())


def record_of(entries: Iterable[Mapping[str, Any]], columns: str) -> tuple[list[str], list[list[Value]]]:
    """A CSV's columns, whose names stand in a string, and a row of them for each entry."""
    names = columns.split()
    return names, [[entry.get(name) for name in names] for entry in entries]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that there are; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
