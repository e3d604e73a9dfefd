"""What a chart shows as a table, for who hears the page and for who wants the numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fedsim.report.wording import DASH, duration

ROWS_SHOWN = 40

Tell = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """A named line or cloud of (x, y) points."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Data:
    """The table.

    Attributes:
        rows: all, or some of them evenly spaced.
        of: how many there are.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    of: int


@dataclass(frozen=True)
class Chart:
    """A drawing with its numbers."""

    svg: Markup
    data: Data


def table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Data:
    """The first and the last row are always among those shown."""
    count = min(ROWS_SHOWN, len(rows))
    places = [round(place * (len(rows) - 1) / max(1, count - 1)) for place in range(count)]
    return Data(tuple(columns), tuple(rows[place] for place in places), len(rows))


def over(axis: str, lines: Sequence[tuple[Series, Tell]]) -> Data:
    """A row for each x, a column for each line."""
    found = [(dict(line.points), tell) for line, tell in lines]
    places = sorted({x for values, _ in found for x in values})
    rows = [(_place(x), *(tell(values[x]) if x in values else DASH for values, tell in found)) for x in places]
    return table([axis, *(line.name for line, _ in lines)], rows)


def counted(names: Sequence[str], values: Sequence[Sequence[float]], edges: Sequence[float], top: float) -> Data:
    """How many values in dB of each name lie between two edges; empty rows are left out, from `top` on is one."""
    counts = np.array([np.histogram(row, edges)[0] for row in values]).T
    rows = [
        (f"{low:.0f} dB and above" if low == top else f"{low:.0f} to {high:.0f} dB", *map(str, row))
        for low, high, row in zip(edges, edges[1:], counts.tolist(), strict=False)
        if any(row)
    ]
    return table(["PSNR", *names], rows)


def spent(parts: Sequence[str], bars: Sequence[tuple[int, int, Sequence[float]]]) -> Data:
    """Seconds of each part, a row for each (first round, last round, seconds)."""
    rows = [
        (
            f"{first:,}" if first == last else f"{first:,} to {last:,}",
            *map(duration, heights),
            duration(sum(heights)),
        )
        for first, last, heights in bars
    ]
    return table(["Round", *parts, "together"], rows)


def _place(x: float) -> str:
    return f"{x:,.0f}" if x.is_integer() and abs(x) < 1e15 else f"{x:g}"
