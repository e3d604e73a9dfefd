"""Images that are tensors in memory already, as the set of a client."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedsim.data.image_set import ImageSet


class TensorImages(ImageSet):
    """[n,C,H,W] images in [0, 1] with [n] labels; nothing is decoded or rounded."""

    def __init__(
        self, images: Float[Tensor, "n c h w"], labels: Int64[Tensor, " n"], ids: Sequence[str] | None = None
    ) -> None:
        self.labels = labels.detach().cpu()
        self.ids = tuple(ids) if ids is not None else tuple(f"image-{place:05d}" for place in range(len(labels)))
        self._images = images.detach().cpu()

    def images(self, indices: Sequence[int] | Int64[Tensor, " b"]) -> Float[Tensor, "b c h w"]:
        """The images at these positions, in this order."""
        return self._images[indices if isinstance(indices, Tensor) else torch.tensor(list(indices), dtype=torch.int64)]

    def _contents(self, positions: Sequence[int]) -> list[bytes]:
        return [image.contiguous().numpy().tobytes() for image in self._images[list(positions)]]

    def subset(self, positions: Sequence[int]) -> "TensorImages":
        """The images at these positions as a set of their own, in this order."""
        chosen = copy.copy(self)
        chosen.labels = self.labels[list(positions)]
        chosen.ids = tuple(self.ids[position] for position in positions)
        chosen._images = self._images[list(positions)]
        return chosen
