"""Nested Python values as JSON beside named arrays, and back with the same types and bits."""

import base64
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsim.wire.records import from_array, to_array

Json = Any
NumpyArray = NDArray[Any]
_PLAIN = (type(None), bool, int, float, str)
_WIDEST = 8
"""Bytes of one number in a safetensors file."""


def flatten(value: Any) -> tuple[Json, dict[str, NumpyArray]]:
    """A value as JSON, and the arrays in it by the way that leads to them: `clients/3/fedsim.memory/head.weight`.

    Arrays are views, not copies, wherever they can be. Everything but lists and plain values becomes an object with one
    key, its kind.

    Raises:
        TypeError: something in it is no number, text, array, Flower record or container of those; it names what.
        ValueError: two arrays have the same way.
    """
    arrays: dict[str, NumpyArray] = {}
    return _flatten(value, "", arrays), arrays


def unflatten(tree: Json, read: Callable[[str], NumpyArray]) -> Any:
    """What `flatten` was given.

    Args:
        read: an array by its name, in memory of its own.

    Raises:
        KeyError, TypeError, ValueError: `flatten` did not make this.
    """
    return _unflatten(tree, "", read)


def _flatten(value: Any, name: str, arrays: dict[str, NumpyArray]) -> Json:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _keep(
            "scalar" if isinstance(value, np.generic) else "ndarray", np.asarray(value, order="C"), name, arrays
        )
    if isinstance(value, torch.Tensor):
        return _keep("tensor", value.detach().cpu().contiguous().numpy(), name, arrays)
    if isinstance(value, Array):
        return _keep("array", from_array(value, copy=False).numpy(), name, arrays)
    if isinstance(value, ArrayRecord):
        for key, array in value.items():
            _keep("", from_array(array, copy=False).numpy(), f"{name}/{key}", arrays)
        return {"arrays": list(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) is list:
        return [_flatten(item, f"{name}/{index}", arrays) for index, item in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [_flatten(item, f"{name}/{index}", arrays) for index, item in enumerate(value)]}
    kind = next((kind for kind, container in _CONTAINERS.items() if type(value) is container), None)
    if kind is None:
        raise TypeError(f"{name.strip('/') or 'it'} is a {type(value).__name__}")
    return {kind: [[_key(key, name), _flatten(item, f"{name}/{key}", arrays)] for key, item in value.items()]}


_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "counter": Counter,
    "records": RecordDict,
    "metrics": MetricRecord,
    "config": ConfigRecord,
}


def _keep(kind: str, array: NumpyArray, name: str, arrays: dict[str, NumpyArray]) -> Json:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > _WIDEST:
        raise TypeError(f"{name.strip('/') or 'it'} is an array of {array.dtype}")
    if name in arrays:
        raise ValueError(f"two arrays are called {name}")
    arrays[name] = array
    return {kind: None}


def _key(key: Any, name: str) -> str | int | float | bool | None:
    if type(key) not in _PLAIN:
        raise TypeError(f"{name.strip('/') or 'it'} has a {type(key).__name__} for a key")
    return key  # type: ignore[no-any-return]


def _unflatten(tree: Json, name: str, read: Callable[[str], NumpyArray]) -> Any:
    if isinstance(tree, list):
        return [_unflatten(item, f"{name}/{index}", read) for index, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](dict(_items(content, name, read)))
    match kind:
        case "tuple":
            return tuple(_unflatten(item, f"{name}/{index}", read) for index, item in enumerate(content))
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "arrays":
            return ArrayRecord({key: _to_array(read(f"{name}/{key}")) for key in content})
        case "array":
            return _to_array(read(name))
        case "tensor":
            return torch.from_numpy(read(name))
        case "ndarray":
            return read(name)
        case "scalar":
            return read(name)[()]
    raise ValueError(f"{kind!r} is no kind of value")


def _items(content: Json, name: str, read: Callable[[str], NumpyArray]) -> Iterator[tuple[Any, Any]]:
    return ((key, _unflatten(item, f"{name}/{key}", read)) for key, item in content)


def _to_array(array: NumpyArray) -> Array:
    return to_array(torch.from_numpy(array), copy=False)
