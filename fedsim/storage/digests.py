"""Digests of tensors, of which the same names, types, shapes and bits give the same one, of files and of objects."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hashlib import _Hash, blake2b


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256, in hexadecimal digits."""
    found = hashlib.sha256()
    absorb(found, tensors)
    return found.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def absorb(found: "_Hash | blake2b", tensors: Mapping[str, Tensor]) -> None:
    """Go on with these tensors, in alphabetical order."""
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)


def described(thing: object, inside: tuple[object, ...] = ()) -> str:
    """Text that differs where two objects differ in class or state, at any depth; classes and functions by name.

    Raises:
        TypeError: something in it has no name or state to read, as a lambda has not.
    """
    if thing is None or type(thing) in (bool, int, float, complex, str):
        return repr(thing)
    if isinstance(thing, bytes | bytearray):
        return hashlib.sha256(thing).hexdigest()
    if isinstance(thing, Tensor):
        return digest({"": thing})
    if isinstance(thing, type | FunctionType):
        if isinstance(thing, FunctionType) and "<" in thing.__qualname__:
            raise TypeError(f"{thing.__qualname__} may be any code")
        return f"{thing.__module__}.{thing.__qualname__}"
    for depth, outer in enumerate(inside):
        if outer is thing:
            return f"level {depth}"
    inside = (*inside, thing)
    if type(thing) in (list, tuple, dict, set, frozenset):
        parts: list[object] = list(thing.items() if isinstance(thing, dict) else thing)  # type: ignore[call-overload]
        words = [described(part, inside) for part in parts]
        return f"{type(thing).__name__}({', '.join(sorted(words) if isinstance(thing, set | frozenset) else words)})"
    state = thing.__reduce_ex__(4)  # what a copy is made of: attributes and slots, items, an array's bytes
    if isinstance(state, str):
        return f"{described(type(thing))} {state}"
    return described([list(part) if isinstance(part, Iterator) else part for part in state], inside)
