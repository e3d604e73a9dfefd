"""Float32 on a GPU as on a CPU."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and products on a GPU keep float32's 24 bits in the block, whatever the process has chosen.

    torch lets cuDNN round what convolutions read to the 11 bits of TF32, and `torch.set_float32_matmul_precision` does
    so for products. Closed forms go by differences of 1e-7.
    """
    if not torch.cuda.is_available():
        yield
        return
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before
