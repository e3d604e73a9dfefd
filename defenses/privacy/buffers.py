"""Buffers stand beside a private update without noise: training must not have changed them.

Floating-point ones, that is: no other leaves a client, BatchNorm's count of batches neither.
"""

import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.update import State, Update


def floating_buffers(model: nn.Module | None) -> State:
    """Copies of those that could be shared; none without a model."""
    if model is None:
        return {}
    return {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def refuse_changed(update: Update, model: nn.Module | None, before: State, defense: str) -> None:
    """Raises ConfigError where a buffer that is shared is not what it was before the training."""
    if model is None:
        return
    trained = dict(model.named_buffers())
    for name in update.buffers:
        if not torch.equal(trained[name], before[name]):
            expected = f"a model whose training changes no buffer: {name} would be shared without noise"
            raise ConfigError("defense", defense, expected)
