"""Rows of patch pixels and the picture that they tile."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class PatchPixels:
    """How patches are pictures: normalisation for each entry of a patch, and the grid that they tile."""

    mean: Float[Tensor, " pixels"]
    std: Float[Tensor, " pixels"]
    grid: tuple[int, int]
    patch: tuple[int, int]


def patchify(
    images: Float[Tensor, "1 channels height width"], patch: tuple[int, int]
) -> Float[Tensor, "tokens pixels"]:
    """The rows that `unpatchify` tiles."""
    _, channels, height, width = images.shape
    tiles = images.reshape(channels, height // patch[0], patch[0], width // patch[1], patch[1])
    return tiles.permute(1, 3, 0, 2, 4).reshape(-1, channels * patch[0] * patch[1])


def unpatchify(
    patches: Float[Tensor, "tokens pixels"], grid: tuple[int, int], patch: tuple[int, int]
) -> Float[Tensor, "1 channels height width"]:
    """Put patches back in row-major order; a row is flattened as timm's projection is: (channel, row, column)."""
    rows, columns = grid
    tiles = patches.reshape(rows, columns, -1, *patch)
    return tiles.permute(2, 0, 3, 1, 4).reshape(1, -1, rows * patch[0], columns * patch[1])
