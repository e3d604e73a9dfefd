"""Tensors as Flower's `Array` and `ArrayRecord`: encoded where bytes are asked for, and not before.

Between processes of one machine their memory travels as it is (pickle's protocol 5, out of band), and arrives
read-only. On Flower's own wire they are an `Array` and an `ArrayRecord` like any other.
"""

import io
import math
import pickle  # between the workers of a run alone: nothing is ever unpickled from disk or from a client's bytes
from collections.abc import Iterator, MutableMapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedsim.wire.blocks import Block

NUMPY_STYPE = "numpy.ndarray"
PLAIN = "biufc"
"""Kinds of numbers: of anything else the memory alone is not the array."""


class TensorArray(Array):
    """A tensor."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.__dict__.update(dtype=dtype_name(values.dtype), shape=values.shape, stype=NUMPY_STYPE, values=values)

    values: NDArray[Any]

    @cached_property
    def data(self) -> bytes:  # type: ignore[override]
        return b"".join((npy_header(self.dtype, self.shape), self.values.tobytes()))

    def numpy(self) -> NDArray[Any]:
        return self.values.copy()

    def deflate(self) -> bytes:
        # The name of the class is part of Flower's format.
        return Array(self.dtype, self.shape, self.stype, self.data).deflate()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, tuple(other.shape), other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TensorArray({self.dtype}, {self.shape})"

    def __reduce__(self) -> tuple[type["TensorArray"], tuple[NDArray[Any]]]:
        return TensorArray, (self.values,)


class TensorRecord(ArrayRecord):
    """Named tensors. Flower's own record checks the types of each item anew, which takes longer than the rest."""

    @classmethod
    def of(cls, arrays: dict[str, Array]) -> "TensorRecord":
        """The record of these; the dictionary is handed over."""
        record = cls()
        record.__dict__["_data"] = arrays
        return record

    @classmethod
    def of_block(cls, block: Block, read_only: bool = False) -> "TensorRecord":
        """The record of its tensors; its memory is handed over."""
        record = cls()
        record.__dict__["_data"] = _Views(block, read_only)
        return record

    @property
    def block(self) -> Block | None:
        """All tensors as one, where they came so and nobody has put in another or taken one out."""
        return getattr(self.__dict__["_data"], "block", None)

    def deflate(self) -> bytes:
        # The name of the class is part of Flower's format.
        plain = ArrayRecord()
        plain.__dict__["_data"] = self.__dict__["_data"]
        return plain.deflate()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        block = self.block
        if block is not None and protocol >= 5:
            values = block.values.numpy()
            memory = pickle.PickleBuffer(values)  # type: ignore[arg-type]
            return _unpickled_block, (values.dtype.str, block.names, block.shapes, memory)
        arrays: dict[str, Array] = dict(self.__dict__["_data"])
        each = [array.values for array in arrays.values() if isinstance(array, TensorArray)]
        plain = all(array.dtype.kind in PLAIN and array.flags.c_contiguous for array in each)
        if protocol < 5 or len(each) < len(arrays) or not plain:
            return TensorRecord.of, (arrays,)
        parts = [(array.dtype.str, array.shape, pickle.PickleBuffer(array)) for array in each]  # type: ignore[arg-type]
        return _unpickled, (tuple(arrays), parts)


def _unpickled(names: Sequence[str], parts: Sequence[tuple[str, tuple[int, ...], Any]]) -> TensorRecord:
    arrays = (TensorArray(np.ndarray(shape, dtype, buffer)) for dtype, shape, buffer in parts)
    return TensorRecord.of(dict(zip(names, arrays, strict=True)))


def _unpickled_block(
    dtype: str, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], memory: Any
) -> TensorRecord:
    values = np.frombuffer(memory, dtype)
    return TensorRecord.of_block(Block(torch.from_numpy(values), names, shapes), not values.flags.writeable)


class _Views(MutableMapping[str, Array]):
    """The arrays in a block, made when somebody asks for one: where updates are only added up nobody does."""

    def __init__(self, block: Block, read_only: bool) -> None:
        self.block: Block | None = block
        self._read_only = read_only  # which a tensor does not know of its memory

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        assert self.block is not None
        values, arrays, place = self.block.values.numpy(), dict[str, Array](), 0
        if self._read_only:
            values.flags.writeable = False
        for name, shape in zip(self.block.names, self.block.shapes, strict=True):
            end = place + math.prod(shape)
            arrays[name] = TensorArray(values[place:end].reshape(shape))
            place = end
        return arrays

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __setitem__(self, name: str, array: Array) -> None:
        self._arrays[name] = array
        self.block = None

    def __delitem__(self, name: str) -> None:
        del self._arrays[name]
        self.block = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays if self.block is None else self.block.names)

    def __len__(self) -> int:
        return len(self._arrays if self.block is None else self.block.names)

    def copy(self) -> dict[str, Array]:
        return dict(self._arrays)


@lru_cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """NumPy builds the name anew each time, which takes longer than everything else that is done with a small array."""
    return str(dtype)


@lru_cache(maxsize=4096)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes that `np.save` puts in front of a C-ordered array; parsing them anew costs more than copying."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()
