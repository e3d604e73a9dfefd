"""The measures of every model as points, recipe beside recipe."""

from pathlib import Path

import numpy as np

from experiments.studies.mjp_recipes.measures import Compared, Measures
from fedsim.report.draw.png import COLOURS, MARKERS, drawing

APART = 0.22
"""Between the points of two recipes at one variant."""


def draw(measured: Measures, columns: list[Compared], path: Path) -> None:
    """A panel for each measure, a point for each seed, a bar at their mean."""
    variants = [variant.name for variant in next(iter(measured.values())).variants]
    with drawing(path, 2.6 * len(columns), 3.0) as figure:
        panels = figure.subplots(1, len(columns), squeeze=False)[0]
        for axes, column in zip(panels, columns, strict=True):
            for number, (recipe, members) in enumerate(measured.items()):
                colour, shift = COLOURS[number], APART * (number - (len(measured) - 1) / 2)
                for place, name in enumerate(variants):
                    known = [value for one in members.records[name] if (value := column.of(one)) is not None]
                    if not known:
                        continue
                    axes.plot([place + shift] * len(known), known, MARKERS[number], color=colour, markersize=4)
                    axes.hlines(float(np.mean(known)), place + shift - APART / 2, place + shift + APART / 2, colour)
                axes.plot([], [], MARKERS[number], color=colour, label=recipe)
            axes.set(title=column.title, xticks=range(len(variants)), xlim=(-0.6, len(variants) - 0.4))
            axes.set_xticklabels(variants)
            axes.grid(visible=True, axis="y")
        panels[0].legend()
