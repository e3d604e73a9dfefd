"""What position embeddings tell about positions: regression, energy and variance as in MJP (Ren et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

DIMENSIONS = (3, 4, 5, 6, 7)
"""Of the paper's Table 6."""


@dataclass(frozen=True)
class PositionErrors:
    """Mean absolute errors in patches, one for each random division into folds.

    Attributes:
        index: of the running index, row by row (the paper's 1D).
        grid: of row and column, the mean of the two (2D).
    """

    index: tuple[float, ...]
    grid: tuple[float, ...]


def position_errors(
    embedding: Float[Tensor, "tokens width"], grid: tuple[int, int], folds: int = 5, repeats: int = 10, seed: int = 0
) -> PositionErrors:
    """Linear regression from embedding to position, each position predicted from the other folds (Table 8).

    Least squares with an intercept; with fewer positions than dimensions, its solution of least norm. The folds are
    random, as in the authors' code, and drawn `repeats` times, since one draw moves the result by several per cent.

    Raises:
        ValueError: the grid has not one position for each embedding, or there are fewer positions than folds.
    """
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold, cross_val_predict

    points = _array(embedding)
    if grid[0] * grid[1] != len(points):
        raise ValueError(f"{len(points)} embeddings for a grid of {grid[0]}x{grid[1]} positions")
    if not 2 <= folds <= len(points):
        raise ValueError(f"{folds} folds: from 2 to {len(points)}, the number of positions")
    index = np.arange(len(points))
    cells = np.stack(np.divmod(index, grid[1]), axis=1)
    errors: dict[str, list[float]] = {"index": [], "grid": []}
    for repeat in range(repeats):
        for name, target in (("index", index), ("grid", cells)):
            division = KFold(folds, shuffle=True, random_state=seed + repeat)
            predicted = cross_val_predict(LinearRegression(), points, target, cv=division)
            errors[name].append(float(np.abs(predicted - target).mean()))
    return PositionErrors(tuple(errors["index"]), tuple(errors["grid"]))


def svd_energy(embedding: Float[Tensor, "tokens width"]) -> Float[np.ndarray, " rank"]:
    """Share of the squared norm within the first k singular directions, k = 1, 2, …; the mean is not taken out."""
    return _cumulative(np.linalg.svd(_array(embedding), compute_uv=False))


def explained_variance(
    embedding: Float[Tensor, "tokens width"], dimensions: Sequence[int] = DIMENSIONS
) -> dict[int, float]:
    """Share of the variance within the first principal components, by their number (Table 6)."""
    points = _array(embedding)
    shares = _cumulative(np.linalg.svd(points - points.mean(axis=0), compute_uv=False))
    return {count: float(shares[min(count, len(shares)) - 1]) for count in dimensions}


def cosine_similarities(
    embedding: Float[Tensor, "tokens width"], grid: tuple[int, int]
) -> Float[np.ndarray, "rows columns rows columns"]:
    """[r, c] is the map of how like the embedding of (r, c) every position's is, in [-1, 1]."""
    points = _array(embedding)
    directions = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    maps: np.ndarray = (directions @ directions.T).clip(-1.0, 1.0).reshape(*grid, *grid)
    return maps


def _array(embedding: Tensor) -> Float[np.ndarray, "tokens width"]:
    array: Float[np.ndarray, "tokens width"] = embedding.detach().cpu().double().numpy()
    return array


def _cumulative(singular_values: Float[np.ndarray, " rank"]) -> Float[np.ndarray, " rank"]:
    """Equal embeddings have nothing to explain: all of it is in the first direction."""
    energy = np.square(singular_values)
    total = energy.sum()
    shares: Float[np.ndarray, " rank"] = np.cumsum(energy) / total if total > 0 else np.ones_like(energy)
    return shares
