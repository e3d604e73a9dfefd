"""How far one rounding of what is shared may be from what was computed, tensor by tensor."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

MIN_SHARE = 1e-4
"""Of the whole norm, as which a tensor counts that is smaller: its gradient may be rounding alone."""
ALONE = 0.1
"""Of one rounding of the whole: a smaller tensor may be off by itself.

Measured on the bias of a separate key projection, whose gradient is zero but for rounding: 0.001 to 0.06, on attention
of 8 to 192 numbers and 1 to 6 blocks.
"""

MIN_ROW = 0.01
"""Of the median, as which a row of the position embedding's gradient counts that is smaller."""


def rounding_std(norm: float, numbers: int, whole: float, eps: float) -> float:
    """The standard deviation that is left of each number of a tensor; 0 only where nothing at all is shared.

    A tensor is a sum of terms that are larger than itself where they cancel: no error is less than that of a tensor of
    `MIN_SHARE` of the whole, and what is smaller than `ALONE` of the whole's rounding may be nothing but that.

    Args:
        norm: of the tensor; whole: of all tensors together.
        eps: the relative error of one rounding.
    """
    alone = norm if norm <= ALONE * eps * whole else 0.0
    return max(eps * norm, eps * MIN_SHARE * whole, alone) / math.sqrt(max(1, numbers))


def row_norms(rows: Float[Tensor, "n m"]) -> Float[Tensor, "n 1"]:
    """The norm of each row, none below `MIN_ROW` of the median of those that are not zero; of zeros alone zeros."""
    norms: Tensor = rows.norm(dim=1, keepdim=True)
    if not bool(norms.any()):
        return norms
    found: Tensor = norms.clamp(min=MIN_ROW * float(norms[norms > 0].median()))
    return found


def rounding_of_rows(rows: Float[Tensor, "n m"], whole: float, eps: float) -> Float[Tensor, "n 1"]:
    """`rounding_std` of each row of the position embedding, whose gradient is that of each token by itself.

    The class token's row may be a million times as large as the others, whose errors are of their own size all the
    same: from float32 to float64 a few roundings of the row, behind LayerScale of 1e-6 too.
    """
    norms = row_norms(rows)
    if not bool(norms.any()):
        return torch.full_like(norms, rounding_std(0.0, rows.numel(), whole, eps))
    found: Tensor = eps * norms / math.sqrt(rows.shape[1])
    return found
