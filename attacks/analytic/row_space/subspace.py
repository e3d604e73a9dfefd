"""The row space of a noisy matrix of low rank: which directions a shared gradient spans."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

FLOORS = (1e-6, 3e-2, math.inf)
"""Noise of a row in proportion to its norm, above this share of the largest row's: rounding of a float32 gradient
(1e-6), added noise and the rounding of weight deltas (the same in every row), and one between."""


@dataclass(frozen=True)
class Subspace:
    """An orthonormal basis of the rows of M, and what the singular values say about it.

    Attributes:
        basis, null: right singular vectors of the `rank` largest singular values, and all others.
        singular: the `rank` largest singular values of the weighed matrix, over their noise: direction i is known up
            to an angle of about 1 / singular[i] towards each direction of `null`.
        gap: smallest kept over largest dropped singular value; inf where nothing was dropped.
    """

    basis: Float[Tensor, "rank width"]
    null: Float[Tensor, "spare width"]
    singular: Float[Tensor, " rank"]
    gap: float

    def leak(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, " rows"]:
        """Expected component of true rows along each direction of `null`: what noise alone lets through."""
        leaked: Tensor = ((rows @ self.basis.T) / self.singular).norm(dim=1)
        return leaked


def row_space(matrix: Float[Tensor, "rows width"], rank: int, complete: bool = True) -> Subspace:
    """The span of the `rank` strongest directions, in float64.

    Rows are weighed by their noise first, under the model of the noise that lifts the kept singular values highest
    above the dropped ones: on a ViT the float32 rounding of query and key rows is far below that of value rows.

    Args:
        complete: compute `null` even where the matrix has fewer rows than columns.
    """
    M = matrix.double()
    norms = M.norm(dim=1)
    largest = norms.max()
    best: tuple[float, Subspace] | None = None
    for floor in FLOORS:
        weighed = M / (largest if floor == math.inf else norms.clamp(min=floor * largest)[:, None])
        found = _decompose(weighed, rank, complete and len(M) < M.shape[1])
        # Each direction counts as far as it stands out; those under the noise are lost under any weights.
        score = float(found.singular.clamp(min=1.0).log().sum())
        if best is None or score > best[0]:
            best = (score, found)
        if rank >= min(M.shape):
            break  # nothing is dropped: the span is the same under any weights
    assert best is not None
    return best[1]


def numerical_rank(matrix: Float[Tensor, "rows width"], eps: float) -> int:
    """Dimensions above the rounding of what was shared: gray pixels in three channels are one."""
    singular = torch.linalg.svdvals(matrix.double())
    return int((singular > singular[0] * eps * math.sqrt(max(matrix.shape))).sum())


def _decompose(M: Float[Tensor, "rows width"], rank: int, full: bool) -> Subspace:
    _, singular, right = torch.linalg.svd(M, full_matrices=full)
    dropped = singular[rank:]
    rounding = float(singular[0]) * torch.finfo(M.dtype).eps * math.sqrt(max(M.shape))
    # Of k dropped directions of pure noise in m rows, an entry's deviation is ‖dropped‖ / √(k m).
    spread = float(dropped.square().mean().sqrt()) / math.sqrt(len(M)) if len(dropped) else 0.0
    noise = max(spread, rounding / math.sqrt(len(M)))
    first = max(float(dropped[0]), rounding) if len(dropped) else 0.0
    return Subspace(
        basis=right[:rank],
        null=right[rank:],
        singular=singular[:rank] / noise,
        gap=float(singular[rank - 1]) / first if first > 0 else math.inf,
    )
