"""Figures as PNG files: what is too full of points and pixels for the page's SVG."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from fedsim.storage.durable import replacing

COLOURS = ("#2f6bde", "#d9600f", "#0b8a6a", "#a23db0", "#8a6d00", "#c22a5b", "#5a6372", "#1f94b8")
"""Those of the page's light theme: one for each model, in the order of the tables."""

MARKERS = "osD^vP*X"
INK, MUTED, GRID = "#1a1f2b", "#565f6e", "#dde1e8"
DPI = 144
SMALL = 64
"""Pixels from which a picture is drawn smoothly."""

STYLE: Any = {  # any: matplotlib types the keys as a literal of 300 names
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
}


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of these inches on white, written to `path` when the block ends: whole or not at all."""
    with warnings.catch_warnings(), mpl.rc_context(STYLE):
        warnings.filterwarnings("ignore", message="Glyph")  # names may hold what the font has not
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI, facecolor="white")
        canvas = FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=False) as partial, partial.open("wb") as file:
            canvas.print_png(file, metadata={"Software": None})


def plain_numbers(axis: Axis, values: Iterable[int] | None = None) -> None:
    """On a logarithmic axis, whose labels are formulas otherwise: those are not drawn here, since names may hold a `$`.

    Args:
        values: to be named; None: as matplotlib chooses.
    """
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")
    if values is not None:
        axis.set_ticks(list(values))


def show_file(axes: Axes, path: Path) -> None:
    """The picture in a file; a small one with its pixels as squares."""
    with Image.open(path) as image:
        smooth = "nearest" if image.width < SMALL else "antialiased"
        axes.imshow(np.asarray(image.convert("RGB")), interpolation=smooth)


def shorten(name: str, most: int = 40) -> str:
    """A name for the little room above a panel, with no underscore in front: matplotlib's legends leave those out."""
    short = name if len(name) <= most else f"{name[: most - 1]}…"
    return f" {short}" if short.startswith("_") else short
