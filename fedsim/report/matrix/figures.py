"""The leakage matrix as pictures: a heat map, and accuracy against leakage with the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from fedsim.metrics.chance import accuracy_span
from fedsim.report.draw import figures, svg
from fedsim.report.draw.chart_data import Chart, table
from fedsim.report.draw.name_places import Box, apart, crowding, place_names
from fedsim.report.draw.svg import GRID, INK, LIMIT, SERIES, STYLE, SURFACE
from fedsim.report.matrix.cells import Matrix, MatrixRow
from fedsim.report.matrix.verdict import standard_error
from fedsim.report.matrix.wording import LEVELS, cell_level, cell_text, leakage_text, strongest_level
from fedsim.report.thresholds import EXACT, bar
from fedsim.report.wording import DASH, accuracy, percent

LIGHT = {INK: "#333a47", GRID: "#dde1e8", LIMIT: "#a61b12", SURFACE: "#ffffff", SERIES[0]: "#2f6bde"}
"""What a PNG has in place of the page's variables."""

FILLS = {
    "guess": ("#e9eef5", "#1a1f2b"),
    "traces": ("#fdeac2", "#1a1f2b"),
    "recognisable": ("#f9bd77", "#1a1f2b"),
    "nearly-identical": ("#e2703f", "#1a1f2b"),
    "indistinguishable": ("#9c1c14", "#ffffff"),
    "as-seen": ("#e6cdea", "#1a1f2b"),
    "labels": ("#dfe3f7", "#1a1f2b"),
    "refused": ("#ffffff", "#565f6e"),
    "failed": ("#ffffff", "#a23db0"),
    "pending": ("#ffffff", "#565f6e"),
}
"""(fill, ink) of a cell by its level: darker is worse, also for an eye that sees no colours."""

DPI = 160

MARKER = 7.5
"""Of a point, in 1/72 inch."""

WIDE = 25.0
"""Per cent of accuracy between the best and the worst row from which the axis is stretched towards 100."""

TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 95, 98, 100)


@dataclass(frozen=True)
class Point:
    """A row in the plot: accuracy in [0, 1] with its standard error, leakage in dB."""

    name: str
    accuracy: float
    error: float | None
    leakage: float
    pareto: bool
    defended: bool = True


def points_of(matrix: Matrix, batch: int | None) -> list[Point]:
    """The rows with updates of this size that have a place."""
    return [
        Point(
            row.name,
            row.accuracy,
            standard_error(row, matrix.test_pictures),
            row.leakage,
            row.pareto,
            row.defended,
        )
        for row in matrix.rows_of(batch)
        if row.placed and row.accuracy is not None and row.leakage is not None
    ]


@mpl.rc_context(STYLE | {"svg.fonttype": "none"})
def privacy_utility_svg(points: Sequence[Point], baseline: float | None, name: str) -> Chart:
    """Follows the page's theme.

    Args:
        name: of the plot, among those of a page.
    """
    figure = _scatter(points, baseline, dict.fromkeys(LIGHT))
    described = (
        "Leakage of the strongest attack against test accuracy; the Pareto front is marked, lower right is best."
    )
    told = [(p, accuracy(p.accuracy, p.error), "on it" if p.pareto else DASH) for p in points]
    rows = [(p.name, accurate, leakage_text(p.leakage), front) for p, accurate, front in told]
    columns = ("Defense", "Test accuracy ± standard error", "Leakage in dB", "Pareto front")
    return Chart(svg.markup(figure, name, described), table(columns, rows))


@mpl.rc_context(STYLE)
def privacy_utility_png(points: Sequence[Point], baseline: float | None) -> bytes:
    return _png(_scatter(points, baseline, LIGHT))


@mpl.rc_context(STYLE | {"axes.grid": False, "hatch.linewidth": 0.6, "font.family": "sans-serif"})
def heat_map_png(matrix: Matrix) -> bytes | None:
    """A panel for each state; rows as in the page."""
    if not matrix.rows or not matrix.attacks:
        return None
    columns, count = len(matrix.attacks), len(matrix.states)
    names = 0.09 * max(len(row.name) for row in matrix.rows) + 0.3
    width = names + count * (0.98 * (columns + 3) + 0.35)
    figure = Figure(figsize=(width, 0.34 * len(matrix.rows) + 1.9), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for axes, state in zip(panels, matrix.states, strict=True):
        _heat_map(axes, matrix, state, named=axes is panels[0])
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, fontsize=8)
    return _png(figure)


def _heat_map(axes: Axes, matrix: Matrix, state: str, *, named: bool) -> None:
    attacks = matrix.attacks
    for y, row in enumerate(matrix.rows):
        cells = {cell.attack: cell for cell in row.cells if cell.state == state}
        for x, attack in enumerate(attacks):
            cell = cells.get(attack)
            level = "pending" if cell is None else cell_level(cell)
            text = "…" if cell is None else cell_text(cell)
            stage = row.audits.get(state)
            if cell is None and stage is not None and stage.status in ("refused", "failed"):
                level, text = stage.status, "n/a" if stage.status == "refused" else "failed"
            _square(axes, float(x), y, level, text)
        value = row.leakage_in(state)
        _square(axes, len(attacks) + 0.15, y, strongest_level(row, state), leakage_text(value), bold=True)
        axes.text(len(attacks) + 1.65, y, percent(row.accuracy), ha="center", va="center", color=LIGHT[INK])
        batch = DASH if row.batch is None else str(row.batch)
        axes.text(len(attacks) + 2.65, y, batch, ha="center", va="center", color=LIGHT[INK])
    heads = [*range(len(attacks)), len(attacks) + 0.15, len(attacks) + 1.4, len(attacks) + 2.4]
    shown = [f"{attack} (baseline)" if attack in matrix.blind else attack for attack in attacks]
    names = [*shown, "strongest", "accuracy", "images in an update"]
    axes.set_xticks(heads, names, rotation=35, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    if named:
        axes.set_yticks(range(len(matrix.rows)), [svg.label(row.name) for row in matrix.rows])
    axes.tick_params(length=0, colors=LIGHT[INK])
    axes.set(xlim=(-0.52, len(attacks) + 3.2), ylim=(len(matrix.rows) - 0.48, -0.52))
    for side in axes.spines.values():
        side.set_visible(False)
    guess = baseline_of(matrix.rows)
    known = "" if guess is None else f"; a guess without the gradient: {guess:.1f} dB"
    axes.set_xlabel(f"PSNR in dB of private images, model as {state}{known}", color=LIGHT[INK], fontsize=8.5)


def _square(axes: Axes, x: float, y: int, level: str, text: str, bold: bool = False) -> None:
    fill, ink = FILLS[level]
    hatch = "////" if level in ("refused", "failed") else None
    square = Rectangle(
        (x - 0.48, y - 0.46), 0.96, 0.92, facecolor=fill, edgecolor=LIGHT[GRID], hatch=hatch, linewidth=0
    )
    axes.add_patch(square)
    weight = "bold" if bold else "normal"
    box: Any = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.8} if hatch else None
    axes.text(x, y, text, ha="center", va="center", color=ink, weight=weight, fontsize=8.5, bbox=box)


def _legend() -> list[Patch]:
    handles = []
    for level, words in LEVELS.items():
        hatch = "////" if level == "refused" else None
        handles.append(Patch(facecolor=FILLS[level][0], edgecolor=LIGHT[GRID], hatch=hatch, label=words))
    return handles


def _scatter(points: Sequence[Point], baseline: float | None, palette: dict[str, Any]) -> Figure:
    """Colours by name of the page's variable, or by `palette` where it has one."""

    def paint(colour: str) -> str:
        return palette[colour] or colour

    figure = Figure(figsize=(8.2, 6.0), layout="constrained")
    figure.patch.set_alpha(0) if palette[INK] is None else figure.patch.set_facecolor(paint(SURFACE))
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    accent, ink = paint(SERIES[0]), paint(INK)
    front = sorted({(100 * p.accuracy, min(p.leakage, EXACT)) for p in points if p.pareto})
    if len(front) > 1:  # the front as a staircase: what a point dominates lies above and to the left of it
        axes.step(*zip(*front, strict=True), where="pre", color=accent, linewidth=1.4, alpha=0.8, zorder=2)
    _frame(axes, points, baseline, paint)
    handles = [
        axes.plot([], [], "o-", color=accent, label="Pareto front: nothing is more accurate and leaks less")[0],
        axes.plot([], [], "o", color=paint(SURFACE), markeredgecolor=ink, label="dominated")[0],
        axes.plot([], [], "D", color=paint(SURFACE), markeredgecolor=ink, label="no defense")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, labelcolor=ink)
    xs, ys = [100 * point.accuracy for point in points], [min(point.leakage, EXACT) for point in points]
    centres = svg.laid_out(figure, axes, xs, ys)
    moves = apart(centres, MARKER + 2.0)
    for point, x, y, aside in zip(points, xs, ys, moves, strict=True):
        if point.error:
            bar: Any = {"color": accent if point.pareto else ink, "alpha": 0.45, "linewidth": 1.2, "capsize": 2.5}
            axes.errorbar(x, y, xerr=100 * point.error, zorder=2.5, **bar)
        look: Any = {"color": accent if point.pareto else paint(SURFACE), "markersize": MARKER, "markeredgewidth": 1.2}
        look |= {"marker": "o" if point.defended else "D", "markeredgecolor": accent if point.pareto else ink}
        axes.plot(x, y, transform=svg.moved(axes, aside), clip_on=False, zorder=3, **look)
    _write_names(figure, axes, points, centres, moves, ink)
    return figure


def _frame(axes: Axes, points: Sequence[Point], baseline: float | None, paint: Any) -> None:
    xs = [100 * point.accuracy for point in points]
    wide = max(xs) - min(xs) > WIDE
    if wide:
        axes.set_xscale("function", functions=(_stretched, _unstretched))
    ends = (100 * end for end in accuracy_span([(point.accuracy, point.error) for point in points]))
    low, high = (_stretched(np.array(edge)) if wide else edge for edge in ends)
    room = max(0.08 * (high - low), 0.05 if wide else 1.5)
    left, right = (_unstretched(np.array(edge)) if wide else edge for edge in (low - room, high + room))
    axes.set_xlim(max(float(left), 0.0), min(float(right), 100.0))
    if wide:
        axes.set_xticks([tick for tick in TICKS if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]])
    ys = [min(point.leakage, EXACT) for point in points] + ([] if baseline is None else [baseline])
    axes.set_ylim(max(0.0, min(ys) - 4), max(max(ys) + 10, bar(baseline) + 5))
    axes.set_yticks([tick for tick in range(0, int(EXACT) + 1, 10) if tick >= axes.get_ylim()[0]])
    axes.axhline(bar(baseline), color=paint(LIMIT), linestyle="--", linewidth=1.1, zorder=1)
    _tell(axes, "recognisable from here", bar(baseline), paint(LIMIT))
    if baseline is not None:
        axes.axhline(baseline, color=paint(INK), linestyle=":", linewidth=1.1, zorder=1)
        _tell(axes, "a guess without the gradient", baseline, paint(INK))
    axes.set_xlabel(f"Test accuracy (%){', the error on a log scale' if wide else ''}", color=paint(INK))
    axes.set_ylabel(f"Leakage to the strongest attack (dB of PSNR, {EXACT:.0f} and more as that)", color=paint(INK))
    axes.set_title(figures.BEST, loc="right", fontsize=8, color=paint(INK))
    axes.tick_params(colors=paint(INK))
    axes.grid(color=paint(GRID))
    for side in axes.spines.values():
        side.set_color(paint(GRID))


def _stretched(accuracy: Any) -> Any:
    """From per cent to a scale on which the last few per cent have room: minus the logarithm of the error."""
    return -np.log10(np.maximum(101.0 - accuracy, 1e-3))


def _unstretched(place: Any) -> Any:
    return 101.0 - 10.0 ** (-place)


def _tell(axes: Axes, text: str, height: float, colour: str) -> None:
    left = axes.get_xlim()[0]
    axes.annotate(text, (left, height), (4, 3), textcoords="offset points", color=colour, size=8)


def _write_names(
    figure: Figure, axes: Axes, points: Sequence[Point], centres: np.ndarray, moves: np.ndarray, ink: str
) -> None:
    """Names beside their points; those on the front first, those in a crowd last.

    Args:
        centres: [points, 2], where the data lie in points; `moves`: by how much each point stands aside.
    """
    canvas = FigureCanvasAgg(figure)
    renderer, unit = canvas.get_renderer(), figure.dpi / 72
    looks: list[Any] = [{"size": 8.5, "weight": "bold" if point.pareto else "normal"} for point in points]
    where = [(100 * point.accuracy, min(point.leakage, EXACT)) for point in points]
    centres = centres + moves
    texts = [Text(0, 0, point.name, figure=figure, **look) for point, look in zip(points, looks, strict=True)]
    extents = [text.get_window_extent(renderer) for text in texts]
    sizes = np.array([[extent.width, extent.height] for extent in extents], dtype=float) / unit
    obstacles = [(x - 5.0, y - 5.0, x + 5.0, y + 5.0) for x, y in centres.tolist()]
    obstacles += [_box(text.get_window_extent(renderer), unit) for text in axes.texts]
    for point, (x, height) in zip(points, where, strict=True):
        ends = [(x + side * 100 * (point.error or 0.0), height) for side in (-1, 1)]
        (left, y), (right, _) = (axes.transData.transform(ends) / unit).tolist()
        obstacles += [(left, y - 1.0, right, y + 1.0)] if point.error else []
    crowd = crowding(centres)
    order = sorted(range(len(points)), key=lambda index: (not points[index].pareto, crowd[index]))
    places = place_names(centres, sizes, _box(axes.get_window_extent(), unit), obstacles, order)
    line = {"arrowstyle": "-", "color": ink, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 4}
    for point, xy, aside, place, look in zip(points, where, moves, places, looks, strict=True):
        look |= {"color": ink, "ha": "center", "va": "center", "arrowprops": line if place.line else None}
        look |= {"xycoords": svg.moved(axes, aside), "textcoords": "offset points"}
        axes.annotate(svg.label(point.name), xy, (place.dx, place.dy), **look)


def _box(extent: Any, unit: float) -> Box:
    return (float(extent.x0 / unit), float(extent.y0 / unit), float(extent.x1 / unit), float(extent.y1 / unit))


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def baseline_of(rows: Sequence[MatrixRow]) -> float | None:
    return next((row.baseline for row in rows if row.baseline is not None), None)
