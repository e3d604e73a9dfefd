"""Tensors as Flower's `Array` and `ArrayRecord`: encoded where bytes are asked for, and not before.

Between processes of one machine their memory travels as it is (pickle's protocol 5, out of band), and arrives
read-only. On Flower's own wire they are an `Array` and an `ArrayRecord` like any other.
"""

import io
import pickle  # between the workers of a run alone: nothing is ever unpickled from disk or from a client's bytes
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

NUMPY_STYPE = "numpy.ndarray"
PLAIN = "biufc"
"""Kinds of numbers: of anything else the memory alone is not the array."""


class TensorArray(Array):
    """A tensor."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.__dict__.update(dtype=_dtype_name(values.dtype), shape=values.shape, stype=NUMPY_STYPE, values=values)

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

    def deflate(self) -> bytes:
        # The name of the class is part of Flower's format.
        plain = ArrayRecord()
        plain.__dict__["_data"] = self.__dict__["_data"]
        return plain.deflate()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        arrays: dict[str, Array] = self.__dict__["_data"]
        values = [array.values for array in arrays.values() if isinstance(array, TensorArray)]
        plain = all(array.dtype.kind in PLAIN and array.flags.c_contiguous for array in values)
        if protocol < 5 or len(values) < len(arrays) or not plain:
            return TensorRecord.of, (arrays,)
        parts = [(array.dtype.str, array.shape, pickle.PickleBuffer(array)) for array in values]  # type: ignore[arg-type]
        return _unpickled, (tuple(arrays), parts)


def _unpickled(names: Sequence[str], parts: Sequence[tuple[str, tuple[int, ...], Any]]) -> TensorRecord:
    arrays = (TensorArray(np.ndarray(shape, dtype, buffer)) for dtype, shape, buffer in parts)
    return TensorRecord.of(dict(zip(names, arrays, strict=True)))


@lru_cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """NumPy builds the name anew each time, which takes longer than everything else that is done with a small array."""
    return str(dtype)


@lru_cache(maxsize=4096)
def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes that `np.save` puts in front of a C-ordered array; parsing them anew costs more than copying."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()
