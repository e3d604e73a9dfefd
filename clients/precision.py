"""The precision that a client computes in: autocast, and for float16 the scale of its loss."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.update import Precision, State

INITIAL, GROWTH_INTERVAL = 2.0**16, 2000
"""Those of torch's GradScaler."""


def check_precision(precision: Precision, model: nn.Module) -> None:
    """Raises ConfigError where autocast would pass over the model's parameters."""
    if precision != "float32" and any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        raise ConfigError("client.precision", precision, "float32 beside float64 weights, which autocast leaves alone")


def autocast(model: nn.Module, precision: Precision) -> AbstractContextManager[object]:
    """What forward and loss run under, on the model's device."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, getattr(torch, precision))


class LossScale:
    """What a loss is multiplied by so that small gradients survive float16: torch's GradScaler, without an optimiser.

    The scale halves after a step whose gradient is not finite, and doubles after `GROWTH_INTERVAL` steps that are.

    Args:
        precision: only float16 needs one; of others the scale stays 1 and nothing overflows.
    """

    def __init__(self, precision: Precision) -> None:
        self.needed = precision == "float16"
        self.value = INITIAL if self.needed else 1.0
        self._overflowed = False
        self._steady = 0

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.value if self.needed else loss

    def unscaled(self, gradients: State) -> State:
        """The gradients of the loss itself."""
        if not self.needed:
            return gradients
        found = {name: gradient / self.value for name, gradient in gradients.items()}
        self._overflowed |= not all(bool(gradient.isfinite().all()) for gradient in found.values())
        return found

    def step(self) -> bool:
        """End a step: whether its gradient was finite."""
        finite, self._overflowed = not self._overflowed, False
        self._steady = self._steady + 1 if finite else 0
        if self.needed and not finite:
            self.value /= 2.0
        elif self.needed and self._steady == GROWTH_INTERVAL:
            self.value, self._steady = self.value * 2.0, 0
        return finite
