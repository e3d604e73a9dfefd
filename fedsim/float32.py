"""Float32 on a GPU as on a CPU."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Read = TypeVar("Read")


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and products on a GPU keep float32's 24 bits in the block, whatever the process has chosen.

    torch lets cuDNN round what convolutions read to the 11 bits of TF32, and `torch.set_float32_matmul_precision` does
    so for products. Closed forms go by differences of 1e-7. The choice is the process's: not for blocks of two threads
    that overlap.
    """
    if not torch.cuda.is_available():
        yield
        return
    by_names, convolutions, products = _parts(), _readable(_convolutions), _readable(torch.get_float32_matmul_precision)
    chosen = [part.fp32_precision for part in by_names]
    _choose(None if convolutions is None else False, None if products is None else "highest")
    for part in by_names:
        part.fp32_precision = "ieee"
    try:
        yield
    finally:
        _choose(convolutions, products)
        for part, precision in zip(by_names, chosen, strict=True):
            part.fp32_precision = precision


def _parts() -> list[Any]:
    """What torch since 2.9 has a precision for, by name."""
    cudnn: Any = torch.backends.cudnn
    return [cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul] if hasattr(cudnn, "conv") else []


def _convolutions() -> bool:
    return bool(torch.backends.cudnn.allow_tf32)


def _readable(read: Callable[[], Read]) -> Read | None:
    """None where the process has chosen by name, which torch then refuses to say in the older words."""
    try:
        return read()
    except RuntimeError:
        return None


def _choose(convolutions: bool | None, products: str | None) -> None:
    if convolutions is not None:
        torch.backends.cudnn.allow_tf32 = convolutions
    if products is not None:
        torch.set_float32_matmul_precision(products)
