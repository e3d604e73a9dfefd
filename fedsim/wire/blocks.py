"""Tensors that lie in one block of memory, one after the other: copied, checked and added up as one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from fedsim.update import State


@dataclass(frozen=True, eq=False)
class Block:
    """Named tensors of one type."""

    values: Shaped[Tensor, " numbers"]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def tensors(self) -> State:
        """Each in the block's memory."""
        parts = self.values.split([torch.Size(shape).numel() for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def like(self, other: "Block | None") -> bool:
        """Whether the other holds tensors of the same names, shapes and type, in the same order."""
        return (
            other is not None
            and self.values.dtype == other.values.dtype
            and self.names == other.names
            and self.shapes == other.shapes
        )

    def with_values(self, values: Shaped[Tensor, " numbers"]) -> "Block":
        """The same tensors of other values."""
        return Block(values, self.names, self.shapes)

    @classmethod
    def of(cls, state: State) -> "Block | None":
        """The block that these tensors are, all of it; None: they are not."""
        tensors = list(state.values())
        block, place = tensors[0]._base if tensors else None, 0
        if block is None or block.requires_grad or block.ndim != 1 or not block.is_contiguous():
            return None
        for tensor in tensors:
            if tensor._base is not block or tensor.storage_offset() != place or not tensor.is_contiguous():
                return None
            place += tensor.numel()
        if place != block.numel() or tensors[0].dtype != block.dtype:
            return None
        return cls(block, tuple(state), tuple(tuple(tensor.shape) for tensor in tensors))


@torch.no_grad()
def copied(tensors: Mapping[str, Tensor], alike: bool | None = None) -> State:
    """Copies on the CPU: in one block where they are of one type.

    Args:
        alike: whether they are of one type and on one device, where somebody knows.
    """
    held = list(tensors.values())
    if len(held) < 2 or not (are_alike(held) if alike is None else alike):
        return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    return dict(zip(tensors, _unflatten_dense_tensors(_flatten_dense_tensors(held).cpu(), held), strict=True))


def are_alike(tensors: Collection[Tensor]) -> bool:
    """Whether they are of one type and on one device."""
    return len({(tensor.dtype, tensor.device) for tensor in tensors}) < 2
