"""Whole pixel levels of what a model reads, and back."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from defenses.base import Batch

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel."""


def to_bytes(pictures: Float[Tensor, "*batch c h w"]) -> UInt8[Tensor, "*batch c h w"]:
    """Pictures in [0, 1] rounded to 8 bits."""
    return (pictures * 255).round().clamp(0, 255).to(torch.uint8)


def on_bytes(batch: Batch, normalisation: Normalisation, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with each picture changed by itself, as [c,h,w] bytes; an unchanged one comes back bit by bit."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in normalisation)
    pictures = to_bytes(batch.images.detach().cpu().double() * std + mean)
    pictures = torch.stack([change(image) for image in pictures])
    # In the dtype of the pictures, as they were normalised before: untouched ones come back bit by bit.
    images = pictures.to(batch.images.dtype) / 255
    images = (images - mean.to(images)) / std.to(images)
    return replace(batch, images=images.to(batch.images.device))
