"""Digests of tensors, of which the same names, types, shapes and bits give the same one, and of files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
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
