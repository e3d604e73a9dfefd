"""Buffers that are in no state, and so come with none."""

import torch
from torch import nn


class UnsavedBuffers:
    """As the model was built: tensors, or None where a forward pass fills them."""

    def __init__(self, model: nn.Module) -> None:
        held = model.state_dict().keys()
        self._built = [
            (module, name, buffer, None if buffer is None else buffer.clone())
            for owner, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if (f"{owner}.{name}" if owner else name) not in held
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Also where a forward pass has put another tensor in place of one: it is that of the build again."""
        for module, name, buffer, value in self._built:
            module._buffers[name] = buffer
            if buffer is not None and value is not None:
                buffer.copy_(value)
