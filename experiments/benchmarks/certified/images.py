"""The images that clients hold: a pool, and batches that are hard to tell apart."""

from functools import cached_property, lru_cache
from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from fedsim.data import Digits, FederatedData, ImageFolder, Source
from fedsim.data.tensors import TensorImages

POOL = 200
"""Images that a model is trained on, and that batches are drawn from."""

SINGLE = ("plain", "relabelled", "low_contrast", "faint", "dark")
SEVERAL = ("own", "random", "same_label", "one_class", "twins", "burst", "low_contrast", "shifted", "mirrored")
"""Kinds of batches. own, random, same_label: whose labels. With random labels too: one_class: images of one class;
twins: each image twice; burst: one image; shifted: each beside its copy a pixel apart; mirrored: beside its mirror
image. faint: low contrast between the levels of 8 bits."""


class ImagePool(FederatedData):
    """A source whose classes are joined to fewer, and its first `POOL` images."""

    def __init__(self, source: Source, side: int, classes: int) -> None:
        super().__init__(source, None, side)
        self._joined = classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self._joined))

    @cached_property
    def images(self) -> Float32[Tensor, "pool 3 side side"]:
        return self.train.images(range(POOL))

    @cached_property
    def labels(self) -> Int64[Tensor, " pool"]:
        return self.train.labels[:POOL] * self._joined // len(super().class_names)


@lru_cache(maxsize=8)
def pool(pictures: Path | None, side: int, classes: int) -> ImagePool:
    """Images of a folder of class folders, or scikit-learn's digits."""
    source: Source = Digits(seed=0) if pictures is None else ImageFolder(str(pictures), seed=0, verify=False)
    return ImagePool(source, side, classes)


def draw(images: Tensor, labels: Tensor, classes: int, kind: str, size: int, rng: torch.Generator) -> TensorImages:
    """A batch of this kind; every image has an id of its own, so that the truth counts each."""
    order = torch.randperm(len(labels), generator=rng)
    chosen = order[:size]
    found, own = images[chosen], labels[chosen]
    if kind in ("random", "relabelled"):
        own = torch.randint(classes, (size,), generator=rng)
    elif kind == "same_label":
        own = own[:1].expand(size).clone()
    elif kind == "one_class":
        alike = order[labels[order] == labels[order[0]]]
        found = images[alike[torch.arange(size) % len(alike)]]
        own = torch.randint(classes, (size,), generator=rng)
    elif kind in ("twins", "burst", "shifted", "mirrored"):
        distinct = 1 if kind == "burst" else (size + 1) // 2
        places = torch.arange(size) % distinct
        found, own = images[order[places]], torch.randint(classes, (size,), generator=rng)
        if kind == "shifted":
            found[distinct:] = found[distinct:].roll(1, dims=-1)
        elif kind == "mirrored":
            found[distinct:] = found[distinct:].flip(-1)
    elif kind in ("low_contrast", "faint"):
        found = 0.5 + 0.05 * (found - images.mean(dim=0))
        if kind == "low_contrast":
            found = (found * 255).round() / 255
    elif kind == "dark":
        found = (found * 255 / 16).round() / 255
    elif kind not in ("plain", "own"):
        raise ValueError(f"no such kind of batch: {kind}")
    return TensorImages(found, own, [f"{kind}-{number}" for number in range(size)])
