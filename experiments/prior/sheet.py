"""A sheet of pictures as one PNG: rows of originals, of what was made of them, of samples."""

from collections.abc import Sequence
from pathlib import Path

import PIL.Image
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from fedsim.storage.durable import replacing

GAP = 2
"""Pixels between pictures, before enlargement."""
SMALLEST = 64
"""Pixels that a picture on the sheet has at least, by whole multiples."""


def write_sheet(rows: Sequence[Float[Tensor, "n c h w"]], path: Path, columns: int = 16) -> None:
    """One row of pictures in [0, 1] for each set, cut to `columns`; empty sets are left out.

    Raises:
        ValueError: there is no picture at all.
    """
    shown = [row[:columns] for row in rows if len(row)]
    if not shown:
        raise ValueError("a sheet without pictures")
    side = shown[0].shape[-1]
    factor = max(1, -(-SMALLEST // side))
    cell = side * factor + GAP
    width = max(len(row) for row in shown)
    sheet = torch.ones(3, len(shown) * cell + GAP, width * cell + GAP)
    for y, row in enumerate(shown):
        large = F.interpolate(row.float().clamp(0, 1), scale_factor=factor, mode="nearest").expand(-1, 3, -1, -1)
        for x, image in enumerate(large):
            top, left = GAP + y * cell, GAP + x * cell
            sheet[:, top : top + cell - GAP, left : left + cell - GAP] = image
    array = (sheet * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    with replacing(path, durable=False) as partial:
        PIL.Image.fromarray(array).save(partial, "PNG")
