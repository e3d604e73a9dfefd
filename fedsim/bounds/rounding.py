"""How far one rounding of what is shared may be from what was computed, tensor by tensor."""

import math

MIN_SHARE = 1e-4
"""Of the whole norm, as which a tensor counts that is smaller: its gradient may be rounding alone."""
ALONE = 0.1
"""Of one rounding of the whole: a smaller tensor may be off by itself.

Measured on the bias of a separate key projection, whose gradient is zero but for rounding: 0.001 to 0.06, on attention
of 8 to 192 numbers and 1 to 6 blocks.
"""


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
