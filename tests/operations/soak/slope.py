"""Whether a series of measurements grows: a least-squares slope with its confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.stats import t as student

T = TypeVar("T")

CONFIDENCE = 0.95
MOST_CORRELATED = 0.95
"""Beyond this lag-one correlation of the residuals the interval is widened no further."""


@dataclass(frozen=True)
class Slope:
    """Units per step, and the interval that holds the true value with 95 % confidence."""

    value: float
    low: float
    high: float

    @property
    def flat(self) -> bool:
        """Whether the interval holds 0, or all of it is below."""
        return self.low <= 0.0


def fit_slope(steps: Sequence[float], values: Sequence[float]) -> Slope:
    """Ordinary least squares.

    Measurements of memory come in steps, so that residuals are alike from one to the next; the standard error is
    multiplied by √((1+ρ)/(1-ρ)), ρ their lag-one correlation where it is positive, as for an AR(1) process.

    Raises:
        ValueError: fewer than 4 points, or all at one step.
    """
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    spread = float(((x - x.mean()) ** 2).sum()) if len(x) else 0.0
    if len(x) < 4 or spread == 0.0:
        raise ValueError(f"a slope needs 4 points at different steps, not {len(x)}")
    value = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    residuals = y - y.mean() - value * (x - x.mean())
    square = float((residuals**2).sum())
    error = (square / (len(x) - 2) / spread) ** 0.5
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / square if square > 0.0 else 0.0
    rho = min(max(correlation, 0.0), MOST_CORRELATED)
    reach = error * ((1.0 + rho) / (1.0 - rho)) ** 0.5 * float(student.ppf(0.5 + CONFIDENCE / 2.0, len(x) - 2))
    return Slope(value, value - reach, value + reach)


def second_half(values: Sequence[T]) -> Sequence[T]:
    """Without the first half, in which caches fill."""
    return values[len(values) // 2 :]
