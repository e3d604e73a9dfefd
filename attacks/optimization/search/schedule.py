"""Numbers that change over the run: learning rates and weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.errors import one_of, require

KINDS = ("constant", "cosine", "step")


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rate at each step.

    Attributes:
        kind: `constant`, `cosine` (to 0 at the end), or `step` (times `factor` at each of `milestones`).
        warmup: steps over which the rate rises linearly from 0.
        milestones: fractions of the run.
    """

    kind: str = "constant"
    warmup: int = 0
    milestones: Sequence[float] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def __post_init__(self) -> None:
        one_of("schedule.kind", self.kind, KINDS)
        good = all(isinstance(fraction, int | float) and 0 <= fraction <= 1 for fraction in self.milestones)
        require("schedule.milestones", self.milestones, good, "fractions of the run, 0 to 1")
        require("schedule.factor", self.factor, self.factor > 0, "a positive number")
        require("schedule.warmup", self.warmup, self.warmup >= 0, "a number of steps, 0 or more")

    def __call__(self, step: int, steps: int) -> float:
        """The factor at `step` of 0 … steps - 1."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (step - self.warmup) / max(1, steps - self.warmup)))
        if self.kind == "step":
            return float(self.factor ** sum(step >= milestone * steps for milestone in self.milestones))
        return 1.0


def piecewise(value: float | int | Sequence[Sequence[float | int]], fraction: float) -> float:
    """A number, or the last entry of [[from fraction, number], …] that has begun."""
    if isinstance(value, int | float):
        return float(value)
    return float([number for start, number in value if start <= fraction][-1])


def check_piecewise(key: str, value: object) -> None:
    """Refuse what `piecewise` cannot read.

    Raises:
        ConfigError: not a number, and not pairs of a fraction and a number that begin at 0.
    """
    if isinstance(value, int | float):
        return
    try:
        pairs = [(float(start), float(number)) for start, number in value]  # type: ignore[attr-defined]
        starts = [start for start, _ in pairs]
        good = bool(starts) and starts[0] == 0.0 and starts == sorted(starts)
    except (TypeError, ValueError):
        good = False
    require(key, value, good, "a number, or [[0, number], [fraction of the run, number], …]")
