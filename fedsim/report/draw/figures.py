"""The plots of a run's page: accuracy, leakage, searches and time."""

import hashlib
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.report.draw import svg
from fedsim.report.draw.chart_data import Chart, Series, counted, over, spent
from fedsim.report.draw.png import MARKERS
from fedsim.report.draw.svg import LIMIT, SERIES, STYLE, SURFACE
from fedsim.report.thresholds import RECOGNISABLE
from fedsim.report.wording import graded, percent

HATCHES = ("", "///", "\\\\\\", "---", "|||", "xxx", "+++", "//////")

TALL = 2.5
"""A bar that exceeds nine tenths of the others by this factor is cut off."""

BEST = "lower right is best: accurate, leaks little ↘"
"""Above accuracy (to the right) and leakage (upwards)."""

MARKED = 60
"""Points of a line from which its marks are left out: they would hide it, and each other."""

PSNR_SHOWN = 120.0
"""dB at which the axes end; what is above is drawn there."""


def accuracy_curve(series: Sequence[Series]) -> Chart | None:
    """Accuracy in per cent over rounds; None where there is nothing to draw."""
    return _share_curve(series, "accuracy", "Test accuracy (%)", "Test accuracy in per cent over the training rounds.")


def labels_curve(series: Sequence[Series]) -> Chart | None:
    """Recovered labels in per cent over rounds, a line per attack and one for a guess."""
    described = "Labels recovered in per cent over the training rounds, a line per attack."
    return _share_curve(series, "labels", "Labels recovered (%)", described)


@mpl.rc_context(STYLE)
def _share_curve(series: Sequence[Series], name: str, label: str, described: str) -> Chart | None:
    if not any(line.points for line in series):
        return None
    figure, axes = svg.new_figure()
    shown = [Series(line.name, [(x, 100.0 * y) for x, y in line.points]) for line in series]
    for line, above in zip(shown, hidden([line.points for line in shown]), strict=True):
        _draw(axes, line, above)
    axes.set(xlabel="Round", ylabel=label, ylim=(0, 100))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(series) > 1:
        svg.legend(figure)
    return Chart(svg.markup(figure, name, described), over("Round", [(line, percent) for line in series]))


@mpl.rc_context(STYLE)
def leakage_curve(series: Sequence[Series]) -> Chart | None:
    """Mean PSNR in dB over rounds, a line per attack."""
    if not any(line.points for line in series):
        return None
    figure, axes = svg.new_figure()
    shown = [Series(line.name, [(x, min(y, PSNR_SHOWN)) for x, y in line.points]) for line in series]
    for line, above in zip(shown, hidden([line.points for line in shown]), strict=True):
        _draw(axes, line, above)
    recognisable_line(axes, horizontal=True)
    axes.set(xlabel="Round", ylabel=_psnr_label(series))
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    svg.legend(figure)
    drawn = svg.markup(
        figure, "leakage", "Mean PSNR of the reconstructions over the training rounds, a line per attack."
    )
    return Chart(drawn, over("Round", [(line, graded) for line in series]))


@mpl.rc_context(STYLE)
def search_curve(attack: str, measure: str, values: Sequence[Series], psnr: Sequence[Series]) -> Chart | None:
    """What a search measured over its steps, above the PSNR of its pictures in dB; a line per update.

    Args:
        measure: name of what it measured.
        psnr: empty without audit.
    """
    panels = [lines for lines in (values, psnr) if any(line.points for line in lines)]
    if not panels:
        return None
    figure = Figure(figsize=(3.9, 0.6 + 2.0 * len(panels)), layout="constrained")
    figure.patch.set_alpha(0)
    rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    names = list(dict.fromkeys(line.name for lines in panels for line in lines))  # a colour means the same in both
    looks = {
        name: {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % len(MARKERS)], "linewidth": 1.3}
        for number, name in enumerate(names)
    }
    if max(len(line.points) for lines in panels for line in lines) > MARKED:
        looks = {name: look | {"marker": "", "linewidth": 1.0} for name, look in looks.items()}
    for axes, lines in zip(rows, panels, strict=True):
        axes.patch.set_alpha(0)
        for line in lines:
            xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
            shown = [min(y, PSNR_SHOWN) for y in ys] if lines is psnr else ys
            axes.plot(xs, shown, markersize=2.5, **looks[line.name])
        if lines is psnr:
            recognisable_line(axes, horizontal=True)
            axes.set_ylabel(_psnr_label(psnr))
        else:
            axes.set_ylabel(measure)
            heights = [y for line in lines for _, y in line.points]
            if min(heights) > 0 and max(heights) > 20 * min(heights):
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("")
    for name, look in looks.items():
        rows[0].plot([], [], label=svg.label(name), **look)
    rows[-1].set_xlabel("Step")
    svg.legend(figure)
    described = f"{measure} and mean PSNR" if len(panels) > 1 else "Mean PSNR" if panels[0] is psnr else measure
    digest = hashlib.blake2b(attack.encode(), digest_size=4).hexdigest()
    drawn = svg.markup(figure, f"search-{digest}", f"{described} over the steps of {attack}, a line per update.")
    measured = [(Series(f"{measure}, {line.name}", line.points), "{:.4g}".format) for line in values]
    scored = [(Series(f"PSNR, {line.name}", line.points), graded) for line in psnr]
    return Chart(drawn, over("Step", [*measured, *scored]))


@mpl.rc_context(STYLE)
def psnr_histogram(names: Sequence[str], values: Sequence[Sequence[float]]) -> Chart | None:
    """How many pictures reached which PSNR, a colour per attack."""
    if not any(values):
        return None
    figure, axes = svg.new_figure()
    clipped = [[min(value, PSNR_SHOWN) for value in row] for row in values]
    top = max(40.0, max(value for row in clipped for value in row))
    width = 2.0 if top <= 60 else 4.0
    edges = [width * step for step in range(int(top / width) + 3)]
    colours = [SERIES[number % len(SERIES)] for number in range(len(names))]
    look: Any = {"stacked": True, "rwidth": 0.9, "edgecolor": SURFACE, "linewidth": 0}
    axes.hist(clipped, bins=edges, color=colours, label=[svg.label(name) for name in names], **look)
    for number, bars in enumerate(axes.containers):
        for bar in bars:
            bar.set_hatch(_hatch(number))
    recognisable_line(axes, horizontal=False)
    axes.set(xlabel=f"PSNR (dB), {PSNR_SHOWN:.0f} and above together" if top >= PSNR_SHOWN else "PSNR (dB)")
    axes.set(ylabel="Images", xlim=(0, edges[-1]))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    svg.legend(figure)
    drawn = svg.markup(
        figure, "histogram", "Number of images by the PSNR of their reconstruction, a colour per attack."
    )
    return Chart(drawn, counted(names, clipped, edges, PSNR_SHOWN))


@mpl.rc_context(STYLE)
def time_bars(parts: Sequence[str], bars: Sequence[tuple[int, int, Sequence[float]]]) -> Chart | None:
    """Stacked seconds a round, a colour per part.

    Args:
        bars: (first round, last round, seconds of each part); a bar that dwarfs all others is cut and says how tall.
    """
    if not bars:
        return None
    figure, axes = svg.new_figure(height=3.0)
    places = [(first + last) / 2 for first, last, _ in bars]
    widths = [0.8 * (last - first + 1) for first, last, _ in bars]
    tops = [sum(heights) for _, _, heights in bars]
    floor = [0.0] * len(bars)
    for number, name in enumerate(parts):
        heights = [bar[2][number] for bar in bars]
        look: Any = {"color": SERIES[number % len(SERIES)], "edgecolor": SURFACE, "hatch": _hatch(number)}
        axes.bar(places, heights, widths, floor, linewidth=0, label=svg.label(name), **look)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    usual = sorted(tops)[(9 * (len(tops) - 1)) // 10]
    if max(tops) > TALL * usual > 0:
        axes.set_ylim(0, 1.3 * usual)
        for place, top in zip(places, tops, strict=True):
            if top > 1.3 * usual:
                axes.text(place, 1.32 * usual, f"↑ {top:.3g} s", ha="center", va="bottom", fontsize=8.5)
    span = bars[0][1] - bars[0][0] + 1
    axes.set(xlabel="Round" if span == 1 else f"Round, {span} to a bar", ylabel="Seconds a round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    svg.legend(figure)
    return Chart(
        svg.markup(figure, "time", "What the time of each round went to, a colour per part."), spent(parts, bars)
    )


def hidden(lines: Sequence[Sequence[tuple[float, float]]]) -> list[int]:
    """For each line how many later ones would hide it: it is drawn that much thicker."""
    heights = [y for line in lines for _, y in line]
    near = 0.01 * (max(heights, default=0.0) - min(heights, default=0.0))

    def covers(later: Sequence[tuple[float, float]], line: Sequence[tuple[float, float]]) -> bool:
        known = dict(later)
        return bool(line) and all(x in known and abs(known[x] - y) <= near for x, y in line)

    return [sum(covers(later, line) for later in lines[number + 1 :]) for number, line in enumerate(lines)]


def _draw(axes: Axes, series: Series, above: int = 0) -> None:
    """Marks at the end of an axis are seen whole.

    Args:
        above: lines that go over the same points.
    """
    xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
    wider = min(above, 3)
    look: Any = {"linewidth": 1.8 + 2.2 * wider, "markersize": 4.5 + 3.5 * wider}
    axes.plot(xs, ys, label=svg.label(series.name), clip_on=False, **look)


def _psnr_label(series: Sequence[Series]) -> str:
    above = any(y > PSNR_SHOWN for line in series for _, y in line.points)
    return f"Mean PSNR (dB),\n{PSNR_SHOWN:.0f} and more as that" if above else "Mean PSNR (dB)"


def recognisable_line(axes: Axes, *, horizontal: bool) -> None:
    """Across the axes, where pictures begin to be recognisable."""
    draw = axes.axhline if horizontal else axes.axvline
    draw(
        RECOGNISABLE,
        color=LIMIT,
        linestyle="--",
        linewidth=1.2,
        marker="",
        label="recognisable from here, if above the guess",
    )


def _hatch(number: int) -> str:
    """What tells a bar from others to an eye that sees no colours; in the colour of the bar's edge."""
    return HATCHES[number % len(HATCHES)]
