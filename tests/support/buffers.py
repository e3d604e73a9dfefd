"""The buffers that a client shared, as its local training left them."""

from collections.abc import Mapping

from torch import Tensor

from fedsim.update import State, Update


def buffers_after(update: Update, start: Mapping[str, Tensor]) -> State:
    """Their values in float64, whether the update holds them or their change since `start`."""
    if update.kind != "delta":
        return {name: buffer.double() for name, buffer in update.buffers.items()}
    return {name: start[name].double() + change.double() for name, change in update.buffers.items()}
