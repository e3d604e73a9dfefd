"""What all plots of a page share: inline SVG whose colours are CSS variables, for the page's light and dark theme."""

import re
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation, Transform

from fedsim.report.draw.png import MARKERS

INK, GRID, LIMIT, SURFACE = "#010101", "#020202", "#030303", "#050505"
SERIES = ("#040401", "#040402", "#040403", "#040404", "#040405", "#040406", "#040407", "#040408")

# Placeholders that matplotlib writes and the page's style sheet decides.
VARIABLES = {INK: "--chart-ink", GRID: "--chart-grid", LIMIT: "--chart-limit", SURFACE: "--surface"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}

STYLE: Any = {  # any: matplotlib types the keys as a literal of 300 names
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def new_figure(width: float = 3.9, height: float = 2.7) -> tuple[Figure, Axes]:
    """One panel of these inches on no ground of its own."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.set_prop_cycle(color=SERIES, marker=list(MARKERS))
    return figure, axes


def laid_out(figure: Figure, axes: Axes, xs: Sequence[float], ys: Sequence[float]) -> np.ndarray:
    """Where these data lie on the figure, [points, 2] in 1/72 inch; what is drawn later moves the axes no more."""
    FigureCanvasAgg(figure).draw()
    figure.set_layout_engine("none")
    places: np.ndarray = axes.transData.transform(np.column_stack([xs, ys])) * 72 / figure.dpi
    return places


def moved(axes: Axes, aside: np.ndarray) -> Transform:
    """The data's place on the page, moved by so many points."""
    figure = axes.figure
    assert figure is not None
    return axes.transData + ScaledTranslation(aside[0] / 72, aside[1] / 72, figure.dpi_scale_trans)


def legend(figure: Figure) -> None:
    """Below the axes; long names get a line each."""
    names = [name for axes in figure.axes for name in axes.get_legend_handles_labels()[1]]
    figure.legend(loc="outside lower center", ncols=2 if max(map(len, names), default=0) < 24 else 1)


def label(name: str) -> str:
    """Matplotlib leaves names with a leading underscore out of the legend."""
    return f" {name}" if name.startswith("_") else name


def markup(figure: Figure, prefix: str, description: str) -> Markup:
    """The figure as SVG for an HTML page: no prolog, no address, its ids apart from other figures' ids."""
    buffer = StringIO()
    with warnings.catch_warnings(), mpl.rc_context({"svg.hashsalt": prefix}):
        warnings.filterwarnings("ignore", message="Glyph")  # the browser's fonts draw the text, not matplotlib's
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        FigureCanvasSVG(figure).print_svg(buffer, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid=")', rf"\1{prefix}-", text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    opening = f'<svg class="chart" role="img" aria-label="{escape(description)}" {box.group()}>'
    return Markup(opening + text[text.index(">") + 1 :])  # noqa: S704 - matplotlib escapes the names in it
