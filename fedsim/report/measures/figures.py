"""Curves over mask ratios and the errors on corruptions, drawn from the records of `measures.json`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsim.metrics.chance import accuracy_reach
from fedsim.metrics.jigsaw import Spread
from fedsim.report.draw.figures import hidden
from fedsim.report.draw.png import COLOURS, INK, MARKERS, drawing, shorten
from fedsim.report.measures.records import Record, at, grouped, mean_error, over_runs, point, ratios

PANELS = (
    ("consistency", "Consistency (%)", 100.0),
    ("diff_norm", "Diff. Norm.", 1.0),
    ("top1", "Top-1 on x̃ (%)", 100.0),
)


LEAST_SPAN = 10.0
"""Per cent that a panel of shares spans at least."""


def draw_jigsaw(runs: Sequence[Record], path: Path) -> bool:
    """Consistency, Diff. Norm. and top-1 over the mask ratio, with their spread; False where nothing is known."""
    shown = ratios(runs)
    if not shown:
        return False
    reach = accuracy_reach([0.5], min(run["pictures"] for run in runs)) or 0.5
    least = max(LEAST_SPAN, 200.0 * reach)  # differences within chance must not fill the panel
    with drawing(path, 9.6, 3.3) as figure:
        for axes, (key, title, scale) in zip(figure.subplots(1, 3), PANELS, strict=True):
            lines = {name: _line(members, shown, key) for name, members in grouped(runs).items()}
            covered = hidden([[(ratio, scale * spread.mean) for ratio, spread in line] for line in lines.values()])
            for number, ((name, known), above_it) in enumerate(zip(lines.items(), covered, strict=True)):
                heights = [scale * spread.mean for _, spread in known]
                around = [scale * (spread.std or 0.0) for _, spread in known]
                # No share is above all.
                above = [min(s, 100.0 - y) for s, y in zip(around, heights, strict=True)] if scale > 1 else around
                axes.errorbar(
                    [ratio for ratio, _ in known],
                    heights,
                    [around, above],
                    color=COLOURS[number % len(COLOURS)],
                    marker=MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],
                    markersize=4 + 3.5 * min(above_it, 3),
                    linewidth=1.6 + 2.2 * min(above_it, 3),
                    capsize=2,
                    elinewidth=0.8,
                    clip_on=False,
                    label=shorten(name) if axes is figure.axes[0] else None,
                )
            axes.set(title=title, xlabel="Mask ratio", xticks=shown)
            low, high = axes.get_ylim()
            if scale > 1:
                axes.set_ylim(*_span(low, high, least))
            axes.set_xticklabels([f"{ratio:g}" for ratio in shown], rotation=90 if len(shown) > 4 else 0)
            axes.grid(True)
        figure.legend(loc="outside lower center", ncols=min(3, len(grouped(runs))))
    return True


def _line(runs: Sequence[Record], shown: Sequence[float], key: str) -> list[tuple[float, Spread]]:
    found = [(ratio, over_runs(point(run, ratio).get(key) for run in runs)) for ratio in shown]
    return [(ratio, spread) for ratio, spread in found if spread is not None]


def _span(low: float, high: float, least: float) -> tuple[float, float]:
    """From where to where a panel of shares goes: at least so many per cent, and none below 0 or above 100."""
    wider = max(0.0, (least - (high - low)) / 2)
    low, high = low - wider, high + wider
    return max(0.0, low - max(0.0, high - 100.0)), min(100.0, high - min(0.0, low))


def draw_corruptions(runs: Sequence[Record], path: Path) -> bool:
    """A heat map of mean errors, a row for each model; False where nothing is known."""
    groups = {name: members for name, members in grouped(runs).items() if any(at(r, "corruptions") for r in members)}
    if not groups:
        return False
    names = list(
        next(r for members in groups.values() for r in members if at(r, "corruptions"))["corruptions"]["errors"]
    )
    spreads = [[over_runs(mean_error(r, name) for r in members) for name in names] for members in groups.values()]
    values = np.array([[np.nan if spread is None else 100.0 * spread.mean for spread in row] for row in spreads])
    with drawing(path, 9.6, 1.4 + 0.4 * len(groups)) as figure:
        axes = figure.subplots()
        image = axes.imshow(values, cmap="YlOrBr", vmin=0, vmax=100, aspect="auto")
        axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names], rotation=40, ha="right")
        axes.set_yticks(range(len(groups)), [shorten(name, 32) for name in groups])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for row, column in np.argwhere(np.isfinite(values)):
            value = values[row, column]
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value > 60 else INK)
        bar = figure.colorbar(image, ax=axes, label="Error (%)", pad=0.01)
        bar.outline.set_visible(False)
    return True
