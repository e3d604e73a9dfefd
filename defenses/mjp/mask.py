"""Block-wise masks on a patch grid (Bao et al. 2022, BEiT), as Ren et al. 2023 draw them."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

ATTEMPTS = 10
MIN_ASPECT = 0.3
PAPER_TOKENS, PAPER_MIN_BLOCK = 196, 8
CHUNK = 64
"""Uniform numbers drawn at a time: a call to torch costs more than the rest of an attempt."""


def blockwise_masks(
    count: int, grid: tuple[int, int], ratio: float, min_block: int | None, rng: torch.Generator
) -> Bool[Tensor, "count tokens"]:
    """At most int(ratio·N) positions each, in blocks of random shape.

    A block gets ten attempts. Each takes two uniform numbers: for its area, from `min_block` to the number of positions
    still missing, and its aspect ratio, log-uniform in [0.3, 1/0.3]; where it is smaller than the grid in both
    directions, two more for its top and its left edge. It must add 1 to that many positions. A mask ends when none is
    missing, or all ten attempts failed. Where nothing can be masked, or everything is (ratio 1), nothing is drawn.

    Args:
        min_block: None: the paper's 8 of 196 positions in proportion to the grid, at least 1.
    """
    rows, columns = grid
    target = int(ratio * rows * columns)
    if target in (0, rows * columns):
        return torch.full((count, rows * columns), target > 0)
    smallest = scaled_min_block(rows * columns) if min_block is None else min_block
    uniform = _uniform(rng)
    masks = [_mask(rows, columns, target, smallest, uniform) for _ in range(count)]
    return _to_tensor(masks, rows * columns)


def scaled_min_block(tokens: int) -> int:
    return max(1, round(PAPER_MIN_BLOCK * tokens / PAPER_TOKENS))


def _mask(rows: int, columns: int, target: int, min_block: int, uniform: Iterator[float]) -> int:
    """Position n as bit n of a number: a block is laid and counted in a few operations."""
    mask, remaining = 0, target
    while remaining > 0:
        block = _block(mask, rows, columns, remaining, min_block, uniform)
        if block == 0:
            break
        mask |= block
        remaining = target - mask.bit_count()
    return mask


def _block(mask: int, rows: int, columns: int, remaining: int, min_block: int, uniform: Iterator[float]) -> int:
    """A block that fits, or 0."""
    for _ in range(ATTEMPTS):
        area = min_block + next(uniform) * (remaining - min_block)
        aspect = math.exp(math.log(MIN_ASPECT) * (1.0 - 2.0 * next(uniform)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (0 < height < rows and 0 < width < columns):
            continue
        top = int(next(uniform) * (rows - height + 1))
        left = int(next(uniform) * (columns - width + 1))
        row = ((1 << width) - 1) << left
        block = sum(row << (columns * r) for r in range(top, top + height))
        if 0 < (block & ~mask).bit_count() <= remaining:
            return block
    return 0


def _uniform(rng: torch.Generator) -> Iterator[float]:
    """Numbers in [0, 1)."""
    while True:
        yield from torch.rand(CHUNK, generator=rng, dtype=torch.float64).tolist()


def _to_tensor(masks: list[int], tokens: int) -> Bool[Tensor, "count tokens"]:
    length = -(-tokens // 8)
    packed = np.frombuffer(b"".join(mask.to_bytes(length, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(masks), length), axis=1, count=tokens, bitorder="little")
    return torch.from_numpy(bits).bool()
