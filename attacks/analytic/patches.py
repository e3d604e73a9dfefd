"""Rows of patch pixels and the picture that they tile."""

from jaxtyping import Float
from torch import Tensor


def unpatchify(
    patches: Float[Tensor, "tokens pixels"], grid: tuple[int, int], patch: tuple[int, int]
) -> Float[Tensor, "1 channels height width"]:
    """Put patches back in row-major order; a row is flattened as timm's projection is: (channel, row, column)."""
    rows, columns = grid
    tiles = patches.reshape(rows, columns, -1, *patch)
    return tiles.permute(2, 0, 3, 1, 4).reshape(1, -1, rows * patch[0], columns * patch[1])
