"""The figures of the reproduction of APRIL: curves with their spread, and pictures with numbers below them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.april.options import FIXED_PE
from experiments.studies.april.plan import ARMS, KINDS, PART_ARMS
from experiments.studies.april.tables import ATTACKS, KIND_LABELS, published
from experiments.studies.april.work import MEAN, ORIGINAL, SHOWN, image_path
from experiments.studies.harness.ledger import Entry
from fedsim.report.draw.png import COLOURS, INK, MUTED, drawing, plain_numbers, show_file

LABELS, GAP = 1.35, 0.15
"""Widths of the labels' column and of the space between blocks, in pictures."""


@dataclass(frozen=True)
class ImageCell:
    """A picture on disk, and what is below it."""

    path: Path
    text: str


@dataclass(frozen=True)
class PicturePart:
    """Cells of each line, below one title."""

    title: str
    lines: Sequence[Sequence[ImageCell]]


def draw_curves(entries: Sequence[Entry], path: Path) -> None:
    """PSNR and matching loss over the steps: mean over pictures and seeds, of the loss the geometric one, and a band.

    The band is from the 10th to the 90th percentile.
    """
    with drawing(path, 9.6, 3.6) as figure:
        psnr, loss = figure.subplots(1, 2)
        for number, arm in enumerate(PART_ARMS["curves"]):
            group = [entry for entry in entries if entry["part"] == "matching" and entry["arm"] == arm]
            colour, steps = COLOURS[number], group[0]["steps"]
            for axes, name in ((psnr, "psnr_curve"), (loss, "loss_curve")):
                values = np.array([entry[name] for entry in group])
                low, high = np.quantile(values, [0.1, 0.9], axis=0)
                middle = values.mean(axis=0) if name == "psnr_curve" else np.exp(np.log(values).mean(axis=0))
                axes.plot(steps, middle, color=colour, label=ARMS[arm].label if axes is psnr else None)
                axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
        guess = [e for e in entries if e["part"] == "matching" and e["arm"] == MEAN]
        for axes, name in ((psnr, "psnr"), (loss, "loss")):
            if guess:
                level = float(np.mean([entry[name] for entry in guess]))
                label = "no gradient: mean of public pictures" if axes is psnr else None
                axes.axhline(level, color=MUTED, linestyle="--", linewidth=1.0, label=label)
            axes.grid(True)
            axes.set_xlabel("step")
        psnr.set_title("PSNR of the best candidate (dB)")
        loss.set_title("‖g − g′‖² / ‖g′‖² of the best candidate")
        loss.set_yscale("log")
        plain_numbers(loss.yaxis)
        figure.legend(loc="outside lower center", ncols=2)


def draw_twins(entries: Sequence[Entry], path: Path) -> None:
    """Clients' pictures, and what the same search makes of them with and without the position embedding's gradient."""
    found = [entry for entry in entries if entry["part"] == "matching"]
    labels = {
        ORIGINAL: ORIGINAL,
        "row": "∂L/∂E_pos shared,\naligned row by row",
        "plain": "∂L/∂E_pos shared,\nplain matching",
        "withheld": "∂L/∂E_pos withheld,\nplain matching",
        MEAN: "no gradient:\nmean of public pictures",
    }
    block = _block("", found, "arm", labels, path.parent, lambda entry: f"loss {entry['rest']:.2g}")
    draw_images(path, list(labels.values()), [block])


def draw_fixed(entries: Sequence[Entry], path: Path) -> None:
    """Original, published attack, ours and a guess, for each kind of embedding."""
    found = [entry for entry in entries if entry["part"] == FIXED_PE]
    theirs = published(found)
    labels = {
        ORIGINAL: ORIGINAL,
        theirs: f"published attack:\n{ATTACKS[theirs].split(' (')[0]}",
        "row_space": "ours:\nrow_space",
        MEAN: "no gradient:\nmean of public pictures",
    }
    blocks = []
    for kind in KINDS:
        group = [entry for entry in found if entry["kind"] == kind]
        title = f"position embedding\n{KIND_LABELS[kind]}"
        blocks.append(_block(title, group, "attack", labels, path.parent, lambda entry: f"SSIM {entry['ssim']:.2f}"))
    draw_images(path, list(labels.values()), blocks)


def draw_images(path: Path, labels: Sequence[str], blocks: Sequence[PicturePart]) -> None:
    """Lines with their labels on the left, blocks side by side, the numbers below each picture."""
    widths, starts = [LABELS], []
    for block in blocks:
        starts.append(len(widths))
        widths += [*(1.0 for _ in block.lines[0]), GAP]
    with drawing(path, 1.2 * sum(widths), 0.4 + 1.5 * len(labels)) as figure:
        axes = figure.subplots(len(labels), len(widths) - 1, squeeze=False, width_ratios=widths[:-1])
        for cell in axes.flat:
            cell.set_axis_off()
        for line, label in zip(axes, labels, strict=True):
            line[0].text(1.0, 0.5, label, ha="right", va="center", transform=line[0].transAxes)
        for block, start in zip(blocks, starts, strict=True):
            title = axes[0][start].set_title(block.title, loc="left", fontsize=9)
            title.set_in_layout(len(block.lines[0]) == 1)  # it may stand over its neighbours
            for line, cells in zip(axes, block.lines, strict=True):
                for axis, cell in zip(line[start : start + len(cells)], cells, strict=True):
                    _draw(axis, cell)
        # Unseen: the other titles are no part of the layout, this one keeps their height free.
        axes[0][0].set_title(max((block.title for block in blocks), key=lambda title: title.count("\n")), alpha=0)


def _block(
    title: str,
    entries: Sequence[Entry],
    key: str,
    names: Iterable[str],
    folder: Path,
    more: Callable[[Entry], str],
) -> PicturePart:
    """The first seed's pictures; a line for each of the names, that entries have below `key`."""
    own = [entry for entry in entries if entry["seed"] == entries[0]["seed"] and entry["number"] < SHOWN]
    columns = {entry["number"]: entry for entry in own}
    results = {(entry[key], entry["number"]): entry for entry in own}
    lines = []
    for name in names:
        cells = []
        for number, any_other in sorted(columns.items()):
            entry = results.get((name, number))
            text = "" if name == ORIGINAL else "not run" if entry is None else "refused"
            if entry is not None and entry["status"] == "done":
                text = f"{entry['psnr']:.1f} dB\n{more(entry)}"
            cells.append(ImageCell(image_path(folder, {**any_other, key: name}), text))
        lines.append(cells)
    return PicturePart(title, lines)


def _draw(axis: Any, cell: ImageCell) -> None:
    axis.set_axis_on()
    axis.set(xticks=[], yticks=[])
    axis.set_xlabel(cell.text, fontsize=8, color=INK, labelpad=3)
    for side in axis.spines.values():
        side.set_visible(False)
    if cell.path.exists():
        show_file(axis, cell.path)
