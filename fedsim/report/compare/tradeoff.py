"""Accuracy and leakage of several runs, a point for each attack on each: as in a matrix, accuracy goes to the right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

from fedsim.metrics.chance import accuracy_span
from fedsim.report.compare.runs import Comparison
from fedsim.report.draw import figures, svg
from fedsim.report.draw.chart_data import Chart, table
from fedsim.report.draw.name_places import apart
from fedsim.report.draw.png import MARKERS
from fedsim.report.draw.svg import SERIES, STYLE, SURFACE
from fedsim.report.wording import accuracy, graded, percent

SIZE = 8.0
"""Of a marker, in points."""


@dataclass(frozen=True)
class Trade:
    """One attack on one run.

    Attributes:
        accuracy: in [0, 1].
        error: its standard error; None where it is not known.
        leakage: the share of `images` that are recognisable, in [0, 1], or the mean PSNR in dB of those `rebuilt`.
    """

    defense: str
    attack: str
    run: str
    accuracy: float
    error: float | None
    leakage: float
    rebuilt: int
    images: int


def tradeoffs(comparison: Comparison) -> list[tuple[str, Chart]]:
    """Accuracy against both measures of leakage.

    Baselines are left out, whose results say nothing about a defense, and attacks that refused every update: a refusal
    is not a test.
    """
    shares, likeness = [], []
    for row in comparison.rows:
        entry, attack = row.entry, row.attack
        if attack is None or row.baseline or entry.accuracy is None:
            continue
        known = entry.defense, attack.attack, entry.name, entry.accuracy, entry.accuracy_error
        returned = attack.rebuilt, attack.pictures
        if attack.recognised is not None:
            shares.append(Trade(*known, attack.recognised, *returned))
        if attack.mean_capped is not None:
            seen = attack.mean_seen_capped if attack.as_seen else None
            likeness.append(Trade(*known, max(attack.mean_capped, seen or 0.0), *returned))
    # Both list the same defenses in the same order, so that a colour means the same in both.
    names = list(dict.fromkeys(one.defense for one in [*shares, *likeness]))
    plots = {
        "The share that is recognisable": privacy_utility(shares, names, share=True),
        "How close they came": privacy_utility(likeness, names, share=False),
    }
    return [(caption, chart) for caption, chart in plots.items() if chart is not None]


@mpl.rc_context(STYLE)
def privacy_utility(trades: Sequence[Trade], defenses: Sequence[str], *, share: bool) -> Chart | None:
    """A point for each, with one standard error of its accuracy; those that would hide each other stand side by side.

    Args:
        defenses: a colour and a mark for each, in this order.
        share: leakage is the share of recognisable images; else the mean PSNR in dB.
    """
    if not trades:
        return None
    figure, axes = svg.new_figure(height=3.2)
    low, high = accuracy_span([(one.accuracy, one.error) for one in trades])
    axes.set(xlim=(100 * low, 100 * high), xlabel="Test accuracy (%)")
    xs = [100 * one.accuracy for one in trades]
    ys = [100 * one.leakage if share else min(one.leakage, figures.PSNR_SHOWN) for one in trades]
    if share:
        axes.set(ylim=(0, 100), ylabel="Images rebuilt recognisably (%)")
    else:
        figures.recognisable_line(axes, horizontal=True)
        axes.set(ylim=(0, max(*ys, 25.0) * 1.08), ylabel="Mean PSNR (dB)")
    axes.set_title(figures.BEST, loc="right", fontsize=8, pad=9)
    looks: dict[str, Any] = {
        name: {
            "color": SERIES[number % len(SERIES)],
            "marker": MARKERS[(number + number // len(SERIES)) % len(MARKERS)],
            "markersize": SIZE,
            "markeredgecolor": SURFACE,
            "markeredgewidth": 0.8,
            "linestyle": "none",
        }
        for number, name in enumerate(defenses)
    }
    for name, look in looks.items():
        axes.plot([], [], label=svg.label(name), **look)
    svg.legend(figure)
    places = svg.laid_out(figure, axes, xs, ys)
    for one, x, y, aside in zip(trades, xs, ys, apart(places, SIZE + 2.0), strict=True):
        if one.error:
            bar: Any = {"color": looks[one.defense]["color"], "alpha": 0.5, "linewidth": 1.2, "capsize": 2.5}
            axes.errorbar(x, y, xerr=100 * one.error, marker="", clip_on=False, zorder=2.5, **bar)
        axes.plot(x, y, transform=svg.moved(axes, aside), clip_on=False, zorder=3, **looks[one.defense])
    what = "the share of recognisably rebuilt images" if share else "the mean PSNR of the rebuilt images"
    described = f"Leakage as {what}, over test accuracy, a colour per defense; the lower right corner is best."
    tell = percent if share else graded
    measure = "Rebuilt recognisably" if share else "Mean PSNR"
    columns = ["Defense", "Attack", "Run", "Test accuracy", measure, "Images returned"]
    rows = [
        (t.defense, t.attack, t.run, accuracy(t.accuracy, t.error), tell(t.leakage), f"{t.rebuilt:,} of {t.images:,}")
        for t in trades
    ]
    return Chart(svg.markup(figure, "tradeoff-share" if share else "tradeoff-psnr", described), table(columns, rows))
