"""How far a jigsawed picture moves a model's answer: the measures of the MJP paper (Ren et al. 2023, section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor


def difference_norm(
    features: Float[Tensor, "batch width"], jigsawed: Float[Tensor, "batch width"]
) -> Float[Tensor, " batch"]:
    """‖cls(x) - cls(x̃)‖₂ of each picture, in float64. Diff. Norm. is its mean over the pictures."""
    norms: Tensor = (features.double() - jigsawed.double()).norm(dim=1)
    return norms


def consistent(
    logits: Float[Tensor, "batch classes"], jigsawed: Float[Tensor, "batch classes"]
) -> Bool[Tensor, " batch"]:
    """Whether x and x̃ are given the same class, right or wrong. Consistency is the share of pictures that are."""
    return logits.argmax(dim=1) == jigsawed.argmax(dim=1)


@dataclass(frozen=True)
class Spread:
    """A mean, and the standard deviation of the values that it is taken over (n - 1; None of a single value)."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises ValueError without values."""
        if not values:
            raise ValueError("a spread of no values")
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), std, len(values))
