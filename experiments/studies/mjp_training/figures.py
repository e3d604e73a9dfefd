"""Figures of MJP (Ren et al. 2023): projections of the embeddings, attention maps, measures over mask ratios."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from defenses.mjp.mask import blockwise_masks
from experiments.measure.drawing import draw_all
from experiments.studies.mjp_training.tables import MeasureColumn, Measured, Record, true_share
from experiments.studies.mjp_training.unit import subjects
from experiments.studies.mjp_training.variants import RATIOS, TABLE_3, of_ratio
from fedsim.determinism import torch_generator
from fedsim.report.draw.png import COLOURS, INK, MARKERS, MUTED, drawing
from fedsim.settings.commands import MeasureConfig
from fedsim.settings.composition import Config
from fedsim.settings.schema import parse

MASKS_SHOWN = 6
COMPARED = ("A", "I", "J")
"""Whose embeddings and attention are drawn: without MJP, and with it; I is the variant of Table 8."""

APART = 0.22
"""Between the points of two recipes at one variant."""

PANELS = (
    ("consistency", "Consistency (%)", 100.0, 2),
    ("diff_norm", "Diff. Norm.", 1.0, 1),
    ("top1", "Top-1 (%)", 100.0, 0),
)
"""Measures, and their place among the paper's numbers."""


def draw(measured: Measured, folders: Mapping[str, Path], measuring: Config, out: Path) -> dict[str, str]:
    """Files below `out` with what they show.

    Args:
        folders: of the first seed's runs, by variant.
        measuring: settings of `fedsim-measure`.
    """
    result = {}
    if _draw_ratios(measured, out / "figures" / "ratios.png"):
        result["figures/ratios.png"] = "Table 3 as curves over the mask ratio of the training, the paper's dashed"
    _draw_masks(measured.grid, out / "figures" / "masks.png", measuring["seed"])
    result["figures/masks.png"] = "Block-wise masks at the ratios of Table 3: positions whose patches are shuffled"
    shown = [name for name in COMPARED if name in folders] or list(folders)[:1]
    members = subjects(measuring, {f"{name}: {_label(measured, name)}": folders[name] for name in shown})
    records = [dict(record) for name in shown for record in measured.records[name]]
    projected = {**measuring, "measure": {**measuring["measure"], "projections": ["pca", other_projection()]}}
    for figure in draw_all(members, records, parse(MeasureConfig, projected), out):
        result[figure["file"]] = figure["caption"]
    return result


def draw_recipes(measured: Mapping[str, Measured], columns: Sequence[MeasureColumn], path: Path) -> None:
    """A panel for each measure, recipe beside recipe: a point for each seed, a bar at their mean."""
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


def other_projection() -> str:
    """UMAP as in the paper, or t-SNE where umap-learn is not installed."""
    return "tsne" if find_spec("umap") is None else "umap"


def _label(measured: Measured, name: str) -> str:
    return next(variant.label for variant in measured.variants if variant.name == name)


def _draw_ratios(measured: Measured, path: Path) -> bool:
    """A line for each mask ratio of the test pictures; False where fewer than two rows were trained."""
    names = {share: of_ratio(share, measured.scale.ratio) for share in RATIOS}
    trained = [share for share in RATIOS if names[share] in measured.records]
    if len(trained) < 2:
        return False
    with drawing(path, 9.6, 3.3) as figure:
        for axes, (key, title, factor, place) in zip(figure.subplots(1, 3), PANELS, strict=True):
            lines = {f"test masks {ratio:g}": _of_points(key, ratio) for ratio in measured.scale.measured}
            if key == "top1":
                lines = {"whole pictures": lambda record: record["top1"]}
            for number, (label, value) in enumerate(lines.items()):
                seeds = [[factor * value(record) for record in measured.records[names[share]]] for share in trained]
                axes.errorbar(
                    trained,
                    [np.mean(values) for values in seeds],
                    [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in seeds],
                    color=COLOURS[number],
                    marker=MARKERS[number],
                    markersize=4,
                    capsize=2,
                    label=label,
                )
            paper = [TABLE_3[share][place] for share in trained]
            axes.plot(trained, paper, color=INK, linestyle="--", label="paper")
            axes.set(title=title, xlabel="Mask ratio of the training", xticks=trained)
            axes.set_xticklabels([f"{share:g}" for share in trained], rotation=90)
            axes.grid(True)
            axes.legend()
    return True


def _of_points(key: str, ratio: float) -> Any:
    def value(record: Record) -> float:
        (point,) = [point for point in record["jigsaw"]["points"] if point["ratio"] == ratio]
        return float("nan") if point[key] is None else float(point[key]["mean"])

    return value


def _draw_masks(grid: tuple[int, int], path: Path, seed: int) -> None:
    """No pictures, positions alone: dark ones are masked."""
    shares: Sequence[float] = [share for share in RATIOS if share > 0]
    with drawing(path, 1.0 * MASKS_SHOWN + 1.6, 1.05 * len(shares)) as figure:
        panels = figure.subplots(len(shares), MASKS_SHOWN, squeeze=False)
        for share, line in zip(shares, panels, strict=True):
            masks = blockwise_masks(MASKS_SHOWN, grid, share, None, torch_generator(seed, "shown", str(share)))
            for axes, mask in zip(line, masks, strict=True):
                axes.imshow(mask.reshape(grid).numpy(), cmap="Blues", vmin=0, vmax=1)
                axes.set(xticks=np.arange(0.5, grid[1] - 1), yticks=np.arange(0.5, grid[0] - 1))
                axes.tick_params(length=0, labelbottom=False, labelleft=False)
                axes.grid(True)
            label = f"{share:g}\nmasked {100 * true_share(grid, share):.1f} %"
            line[0].text(
                -0.15, 0.5, label, transform=line[0].transAxes, ha="right", va="center", color=MUTED, fontsize=8
            )
