"""`fedsim.show`: rebuilt images beside the originals, for a notebook or a paper."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from fedsim.errors import ConfigError
from fedsim.metrics.results import score
from fedsim.report.draw.pictures import as_levels
from fedsim.result import AttackResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 8
"""Images in a row."""

LETTERS, LINES = 26, 13
"""Of a text that stands in place of images: in a line for each image's width, and lines in a row's height."""


def show(
    result: AttackResult | Sequence[AttackResult],
    images: Float[Tensor, "n c h w"] | None = None,
    *,
    labels: Tensor | Sequence[int] | None = None,
) -> "Figure":
    """A figure: the originals in the first row, below them what each attack rebuilt, with its name and its PSNR.

    Of more than eight images the first eight are shown, and the figure says so.

    Args:
        result: of one attack, or of several on the same update.
        images: the originals in [0, 1]; None shows what was rebuilt alone.
        labels: of the originals, for the score of the labels.

    Raises:
        ConfigError: there is nothing to show.

    >>> import fedsim, torch
    >>> result = fedsim.AttackResult("mine", "guess", "done", images=torch.full((1, 3, 8, 8), 0.5))
    >>> figure = fedsim.show(result, torch.full((1, 3, 8, 8), 0.6))
    >>> [axes.get_title() for axes in figure.axes]
    ['original', '20.0 dB']
    """
    from matplotlib.figure import Figure

    results = [result] if isinstance(result, AttackResult) else list(result)
    if images is None and all(one.images is None for one in results):
        expected = "a result with images, or images= of the originals: " + "; ".join(str(one) for one in results)
        raise ConfigError("result", [one.attack for one in results], expected)
    if images is not None:
        results = [score(one, images, labels) for one in results]
    count = len(images) if images is not None else max(_count(one) for one in results)
    columns = min(MOST, count)
    rows = (images is not None) + len(results)
    figure = Figure(figsize=(1.7 * max(columns, 2), 1.95 * rows), layout="constrained")
    if columns < count:
        figure.suptitle(f"{columns} of {count} images", fontsize=9)
    axes = figure.subplots(rows, columns, squeeze=False)
    for cell in axes.flat:
        cell.set_axis_off()
    if images is not None:
        for place in range(columns):
            axes[0, place].imshow(as_levels(images[place]), interpolation="nearest", cmap="gray", vmin=0, vmax=255)
            axes[0, place].set_title("original" if place == 0 else "", fontsize=9)
    for row, one in enumerate(results, int(images is not None)):
        _draw_row(one, axes[row], images is not None)
    return figure


def _draw_row(one: AttackResult, cells: Sequence[Any], matched: bool) -> None:
    first = cells[0]
    if one.images is None:
        width = round(LETTERS * max(len(cells), 2))
        said = "\n".join(textwrap.wrap(str(one), width, max_lines=LINES, placeholder=" …"))
        # Out of the layout, or the row's first cell would be as wide as its text.
        first.text(0.0, 0.5, said, fontsize=8, va="center", transform=first.transAxes).set_in_layout(False)
        return
    first.text(-0.05, 0.5, one.attack, fontsize=8, rotation=90, ha="right", va="center", transform=first.transAxes)
    for place, cell in enumerate(cells):
        scored = one.scores.images[place] if matched and one.scores is not None else None
        index = scored.reconstruction if scored is not None else (place if place < len(one.images) else None)
        if index is None:
            continue
        cell.imshow(as_levels(one.images[index]), interpolation="nearest", cmap="gray", vmin=0, vmax=255)
        title = "" if scored is None or scored.psnr is None else f"{scored.psnr:.1f} dB"
        cell.set_title(title, fontsize=9)


def _count(one: AttackResult) -> int:
    return 0 if one.images is None else len(one.images)
