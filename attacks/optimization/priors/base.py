"""What every image prior is: one weighted term of the objective of gradient matching."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.errors import ConfigError, require
from fedsim.observation import Observation

PriorTerm = Callable[[Tensor], Tensor]
"""Model-normalised pictures [B,C,H,W] of one candidate to a scalar.

Differentiable, and usable under `torch.func.vmap` and `grad`: no `.item()`, no branching on values, no writes.
"""

TINY = 1e-30
"""Added to squared norms before the root: the gradient at zero is zero, not NaN."""


class Prior(ABC):
    """One term weight·R(pictures) of the objective.

    Args:
        weight: 0 or more; 0 switches the term off.
        start, end: the part of the run in which the term is active, as fractions of all steps.
    """

    def __init__(self, weight: float | int, start: float | int = 0.0, end: float | int = 1.0) -> None:
        require("prior.weight", weight, 0 <= weight < float("inf"), "a finite number, 0 or more")
        if not 0 <= start < end <= 1:
            raise ConfigError("prior.start", f"{start}, prior.end={end}", "fractions of the run, 0 <= start < end <= 1")
        self.weight = float(weight)
        self.start = float(start)
        self.end = float(end)

    def weight_at(self, fraction: float) -> float:
        """The weight when `fraction` (step / steps) of the run is over: 0 outside [start, end)."""
        return self.weight if self.start <= fraction < self.end else 0.0

    @abstractmethod
    def prepare(self, observation: Observation, labels: Tensor | None, device: torch.device) -> PriorTerm:
        """The term R, without its weight.

        Args:
            labels: [B] the class of each picture, in the order of the pictures, or None where unknown.

        Raises:
            NotApplicable: the observation lacks what the prior needs.
        """
