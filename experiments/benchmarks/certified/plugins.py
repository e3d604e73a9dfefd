"""Defenses that fedsim does not have: what anybody could write, and no attack knows by name."""

from dataclasses import replace

import torch
from torch import nn

from defenses.base import Batch, BatchGradient, Defense
from fedsim.update import State, Update


class ScaledTensors(Defense):
    """Shares each tensor times a factor of its own, as layer-wise clipping does; drawn between `least` and 1."""

    def __init__(self, least: float = 0.2) -> None:
        self.least = least

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        factors = self.least + (1 - self.least) * torch.rand(len(update.tensors), generator=rng)
        scaled = zip(update.tensors.items(), factors.tolist(), strict=True)
        return replace(update, tensors={name: factor * tensor for (name, tensor), factor in scaled})


class ClippedTensors(Defense):
    """Clips each tensor of the update to a norm."""

    def __init__(self, max_norm: float = 0.05) -> None:
        self.max_norm = max_norm

    def transform_update(self, update: Update, rng: torch.Generator) -> Update:
        norms = {name: float(tensor.norm()) for name, tensor in update.tensors.items()}
        clipped = {n: t * min(1.0, self.max_norm / max(norms[n], 1e-30)) for n, t in update.tensors.items()}
        return replace(update, tensors=clipped)


class ClippedEntries(Defense):
    """Clamps every entry of the gradient to a share of its tensor's largest."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        found = compute(batch)
        return {name: g.clamp(-self.share * g.abs().max(), self.share * g.abs().max()) for name, g in found.items()}


class RandomMirror(Defense):
    """Mirrors the batch in every other local step, at random."""

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        mirrored = bool(torch.rand((), generator=rng) < 0.5)
        return replace(batch, images=batch.images.flip(-1)) if mirrored else batch


class RandomRoll(Defense):
    """Shifts the batch by up to a pixel, at random in every local step."""

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        shift = int(torch.randint(-1, 2, (), generator=rng))
        return replace(batch, images=batch.images.roll(shift, dims=-1))


class AddedImage(Defense):
    """Adds a constant image to what the model sees."""

    def __init__(self, size: float = 0.1) -> None:
        self.size = size

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        side = batch.images.shape[-1]
        added = self.size * torch.linspace(-1, 1, side, dtype=batch.images.dtype).expand(side, side)
        return replace(batch, images=batch.images + added)


class NeighbourMean(Defense):
    """Trains on the mean of each image and the next one of the batch, or of itself and its mirror image."""

    def transform_batch(self, batch: Batch, rng: torch.Generator) -> Batch:
        other = batch.images.roll(1, dims=0) if len(batch.images) > 1 else batch.images.flip(-1)
        return replace(batch, images=(batch.images + other) / 2)


class SecondLook(Defense):
    """The gradient's mean over the batch and its mirror image: two images behind what looks like one."""

    def gradient(self, model: nn.Module, batch: Batch, compute: BatchGradient, rng: torch.Generator) -> State:
        first = {name: tensor.clone() for name, tensor in compute(batch).items()}
        second = compute(replace(batch, images=batch.images.flip(-1)))
        return {name: (tensor + second[name]) / 2 for name, tensor in first.items()}
