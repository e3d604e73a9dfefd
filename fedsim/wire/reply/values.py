"""Numbers, text and arrays that come from a client, read without trusting what they say of themselves."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array

from fedsim.settings.local.limits import LARGEST
from fedsim.wire.tensor_records import TensorArray, npy_header

LONGEST_TEXT = 2**24
"""Characters of JSON: room for the learning rates of 700,000 local steps."""
SHOWN = 60
"""Characters of a foreign name in a reason."""

MALFORMED = "malformed reply"
"""What the reason begins with of an error that stands for a refused reply."""

LATE = "late"
"""What the reason begins with of an error in place of a reply that may exist: it is slow, or its node has gone."""

Values = np.ndarray[Any, np.dtype[Any]]


class MalformedReply(ValueError):  # noqa: N818 - a verdict on a reply
    """No honest client sends this; the reason is one printable line, whatever the reply holds."""


def check_keys(what: str, record: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Those keys, all of them and no others."""
    for key in wanted:
        if key not in record:
            raise MalformedReply(f"{what} has no {key}")
    for key in record:
        if key not in wanted:
            raise MalformedReply(f"{what} has a key {shown(key)} that no client sends")


def parsed(what: str, text: object) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(text, str) or len(text) > LONGEST_TEXT:
        raise MalformedReply(f"{what} is {shown(text)}, no JSON of at most {LONGEST_TEXT} characters")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"{what} is {shown(text)}, no JSON") from error
    if not isinstance(values, dict):
        raise MalformedReply(f"{what} is {shown(text)}, no JSON object")
    return values


def whole(what: str, value: object, least: int, most: int) -> int:
    """A whole number in this range; Python's own `True` is none."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise MalformedReply(f"{what} is {shown(value)}, no whole number from {least} to {most}")
    return value


def number(what: str, value: object, least: float, most: float = LARGEST) -> None:
    """A number in this range, which NaN is not."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise MalformedReply(f"{what} is {shown(value)}, no number from {least:g} to {most:g}")


def values_like(name: str, array: Array, model: Array) -> Values:
    """The values of an array that is as the model's, without a copy and without trusting what its bytes say."""
    inside: Values | None = array.values if isinstance(array, TensorArray) else None
    if inside is not None and isinstance(model, TensorArray):  # as nearly always in a simulation
        like: Values = model.values
        if inside.dtype == like.dtype and inside.shape == like.shape:
            return inside.reshape(-1)
    dtype, shape = model.dtype, tuple(model.shape)
    if array.dtype != dtype if inside is None else inside.dtype != np.dtype(dtype):
        said = array.dtype if inside is None else str(inside.dtype)
        raise MalformedReply(f"tensor {name} is of {shown(said)}, the model's of {dtype}")
    sides = tuple(array.shape) if inside is None else inside.shape
    if sides != shape or bool in map(type, sides):  # NumPy takes no `True` for a side of 1
        raise MalformedReply(
            f"tensor {name} has the shape {_shown_shape(sides)}, the model's has {_shown_shape(shape)}"
        )
    if inside is not None:
        return inside.reshape(-1)
    if array.stype != "numpy.ndarray":
        raise MalformedReply(f"tensor {name} is serialised as {shown(array.stype)}, not as numpy.ndarray")
    values = decoded(array.data, dtype, shape)
    if values is None:
        raise MalformedReply(
            f"tensor {name}: {len(array.data)} bytes are no plain array of {dtype} {_shown_shape(shape)}"
        )
    return values


def decoded(data: bytes, dtype: str, shape: tuple[int, ...]) -> Values | None:
    """The values, flat; None unless the bytes are exactly what `np.save` writes for this type and shape."""
    header = npy_header(dtype, shape)
    if len(data) != len(header) + math.prod(shape) * np.dtype(dtype).itemsize or not data.startswith(header):
        return None
    return np.frombuffer(data, dtype=dtype, offset=len(header))


def check_values(what: str, values: Values) -> None:
    """Finite, and none above `LARGEST`."""
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    # One pass without a copy, several times faster than the largest magnitude; it passes on NaN and infinity.
    if np.dot(values, values) <= LARGEST**2:
        return
    largest = np.abs(values).max()
    if not math.isfinite(largest):
        raise MalformedReply(f"{what} has values that are not finite")
    if largest > LARGEST:
        raise MalformedReply(f"{what} has values up to {largest:.1e}, more than {LARGEST:.0e}")


def shown(value: object) -> str:
    """A foreign value in one short printable line without HTML."""
    if isinstance(value, str):
        # repr escapes line ends, control characters and those that change the direction of writing.
        text = repr(value[:SHOWN]).replace("<", r"\x3c").replace(">", r"\x3e").replace("&", r"\x26")
        return text if len(value) <= SHOWN else f"{text}… ({len(value)} characters)"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, bytes | Sequence | Mapping):
        return f"{len(value)} {'bytes' if isinstance(value, bytes) else 'entries'}"
    return repr(value) if isinstance(value, int | float | None) else type(value).__name__


def _shown_shape(shape: Sequence[int]) -> str:
    sides = ", ".join(shown(side) for side in shape[:8])
    return f"({sides}{', …' if len(shape) > 8 else ''})"
