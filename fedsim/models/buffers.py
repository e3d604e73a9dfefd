"""A model's buffers, which a forward pass may write to, fill, or put other tensors in place of."""

import torch
from torch import Tensor, nn


class Buffers:
    """As the model has them now: tensors with their values, or None where a forward pass fills them."""

    def __init__(self, model: nn.Module) -> None:
        self._held = [(module, name, one) for module in model.modules() for name, one in module._buffers.items()]
        self._tensors = [one for *_, one in self._held if one is not None and not _expanded(one)]
        self._values = [one.clone() for one in self._tensors]

    @torch.no_grad()
    def restore(self) -> None:
        """Also where a forward pass has put another tensor in place of one: the model has the same one again."""
        for module, name, one in self._held:
            module._buffers[name] = one
        if self._tensors:
            torch._foreach_copy_(self._tensors, self._values)

    @torch.no_grad()
    def settle(self) -> None:
        """Move what a forward pass has put in place of a tensor of the state into that one, which the model has again.

        What goes into no state of this model, for its shape or because nobody can write to the tensor that it replaces,
        stays where it is.
        """
        moved = [
            (module, name, one, now.clone())
            for module, name, one in self._held
            if name not in module._non_persistent_buffers_set
            if (now := module._buffers.get(name)) is not one
            if now is not None and one is not None and now.shape == one.shape and not _expanded(one)
        ]
        for module, name, one, value in moved:
            module._buffers[name] = one.copy_(value)


def _expanded(buffer: Tensor) -> bool:
    """Several of its entries are one number in memory: torch lets nobody write to it."""
    if buffer.layout != torch.strided:
        return False
    return any(step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True))
