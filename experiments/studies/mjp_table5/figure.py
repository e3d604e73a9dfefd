"""The figure beside MJP's Table 5: clients' pictures, and what each closed form makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.studies.harness.ledger import Entry
from experiments.studies.mjp_table5.rows import (
    ADAPTIVE,
    APRIL,
    APRIL_TOLD,
    ATTACKS,
    GREY,
    MEAN,
    PATCH,
    PATCH_TOLD,
    TableRow,
)
from experiments.studies.mjp_table5.tables import compared_images
from fedsim.metrics.image import PSNR_CAP
from fedsim.report.draw.png import MUTED, drawing, show_file

BLOCKS = {APRIL: 0, APRIL_TOLD: 1, PATCH: 2, PATCH_TOLD: 3, ADAPTIVE: 4, MEAN: 0, GREY: 1}
"""Which columns an attack's pictures stand in."""

Results = Mapping[tuple[str, str, int], Entry]


@dataclass(frozen=True)
class FigureCell:
    """Pictures of one folder; with a row, their PSNR above them."""

    folder: str
    title: str
    row: TableRow | None = None


@dataclass(frozen=True)
class FigureRow:
    """A line of the figure: its cells by block."""

    label: str
    cells: dict[int, FigureCell]


def write_figure(rows: Sequence[TableRow], entries: Sequence[Entry], shown: int, out: Path) -> bool:
    """`table5.png`: x and x̃ on top, then a strip for each model and input; False where there is nothing to show."""
    results = {(entry["case"], entry["attack"], entry["number"]): entry for entry in entries}
    strips = arrange(rows, {key[:2] for key, entry in results.items() if entry["status"] == "done"})
    if shown == 0 or len(strips) == 1:
        return False
    blocks = 1 + max(block for strip in strips for block in strip.cells)
    with drawing(out / "table5.png", 1.7 + 0.9 * shown * blocks, 0.3 + 1.15 * len(strips)) as figure:
        axes = figure.subplots(len(strips), shown * blocks, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for line, strip in zip(axes, strips, strict=True):
            line[0].text(-0.1, 0.5, strip.label, transform=line[0].transAxes, ha="right", va="center", color=MUTED)
            for block, cell in strip.cells.items():
                for client in range(shown):
                    _draw(line[block * shown + client], cell, client, results, out)
    return True


def arrange(rows: Sequence[TableRow], done: set[tuple[str, str]]) -> list[FigureRow]:
    """The strips in the order of the table; c shows the pictures of b.

    Args:
        done: cases and attacks that rebuilt a picture.
    """
    ratios = list(dict.fromkeys(row.case.ratio for row in rows if row.case.ratio is not None))
    inputs = [FigureCell("x", "x"), *(FigureCell(f"jigsawed{ratio:g}", f"x̃, ratio {ratio:g}") for ratio in ratios)]
    top = FigureRow("clients' pictures", dict(enumerate(inputs[: 1 + max(BLOCKS.values())])))
    strips: dict[str, FigureRow] = {}
    for row in rows:
        guess = row.attack in (MEAN, GREY)
        if row.setting == "c" or (guess and row.setting == "b") or (row.case.name, row.attack) not in done:
            continue
        label = row.label if guess else f"{row.label}\n{compared_images(row).split(', ')[0]}"
        strip = strips.setdefault(row.name, FigureRow(label, {}))
        strip.cells[BLOCKS[row.attack]] = FigureCell(f"{row.case.name}-{row.attack}", ATTACKS[row.attack], row)
    return [top, *strips.values()]


def _draw(axis: Any, cell: FigureCell, client: int, results: Results, out: Path) -> None:
    text = ""
    if cell.row is not None:
        entry = results.get((cell.row.case.name, cell.row.attack, client))
        text = "refused" if entry is None or entry["status"] != "done" else _decibels(entry[cell.row.against]["psnr"])
    title = cell.title if client == 0 else ""
    axis.set_title(f"{title}\n{text}", fontsize=6.5, pad=2, loc="left")
    path = out / "pictures" / cell.folder / f"{client:03d}.png"
    if path.exists():
        show_file(axis, path)


def _decibels(psnr: float) -> str:
    return "exact" if psnr >= PSNR_CAP else f"{psnr:.1f} dB"
