"""What a client's model really saw: for the scorer alone, never in an attack's signature."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

DIGEST = 16
"""Bytes of what tells images apart."""


def content_of(image: Tensor) -> str:
    """A digest of an image's size and float32 numbers: equal images have one, whatever they are called."""
    held = image.detach().to("cpu", torch.float32).contiguous()
    digest = hashlib.blake2b(repr(tuple(held.shape)).encode(), digest_size=DIGEST)
    digest.update(held.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class GroundTruth:
    """The pictures of an audited update.

    Attributes:
        images: [B,C,H,W] as the model saw them, after whatever a defense did to them: one that turns the signs of
            normalised pixels leaves [0, 1].
        labels: [B], the client's own.
        ids: names of the pictures, for tables. A picture that a defense changed anew in each local step is here once
            for each of its forms, under one name.
        private: [B,C,H,W] in [0, 1]: the client's pictures before any defense; None where they are `images`.
    """

    images: Tensor
    labels: Tensor
    ids: tuple[str, ...]
    private: Tensor | None = None

    @property
    def shown(self) -> Tensor:
        """[B,C,H,W] in [0, 1]: `images` as pictures can show them, which whatever is shown is compared with."""
        return self.images.clamp(0, 1)

    @property
    def originals(self) -> Tensor:
        """[B,C,H,W]: what there is to protect."""
        return self.images if self.private is None else self.private

    @property
    def sources(self) -> list[int]:
        """For each picture the place of the first that was made of the same private one."""
        if len(set(self.ids)) == len(self.ids):
            return list(range(len(self.ids)))
        first: dict[tuple[str, bytes], int] = {}
        images = (image.numpy().tobytes() for image in self.originals.detach().cpu())
        return [first.setdefault(key, place) for place, key in enumerate(zip(self.ids, images, strict=True))]
