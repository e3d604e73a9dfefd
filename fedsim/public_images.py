"""Images that no client holds, as the server has them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from fedsim.errors import ConfigError, require

MOST = 1024
MOST_BYTES = 64 * 2**20
"""Of all of them: they travel with each observation."""


@dataclass(frozen=True)
class PublicImages:
    """Up to `MOST` images at 8 bits a channel.

    Attributes:
        labels: their classes; None where nobody has labelled them.
    """

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, "n"] | None = None

    @classmethod
    def of(cls, images: Float[Tensor, "n c h w"], labels: Int[Tensor, " labels"] | None = None) -> "PublicImages":
        """From images in [0, 1]; the first where there are more than travel.

        Raises:
            ConfigError: another number of labels.
        """
        fits = labels is None or len(labels) == len(images)
        require("public_labels", None if labels is None else len(labels), fits, f"{len(images)}, one for each image")
        kept = most_of(tuple(images.shape[1:]))
        pixels = (images[:kept].detach().cpu() * 255.0).round().clamp(0, 255).to(torch.uint8)
        return cls(pixels, None if labels is None else labels[:kept].detach().cpu().long())

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self) -> Float[Tensor, "n c h w"]:
        """In [0, 1], float32."""
        return self.pixels.float() / 255.0

    def tensors(self) -> dict[str, Tensor]:
        """What there is, by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def digest(self) -> str:
        """Of the content."""
        digest = hashlib.sha256()
        for name, tensor in self.tensors().items():
            digest.update(f"{name}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()[:16]


def check_public(images: Tensor, labels: Tensor | Sequence[int] | None, num_classes: int) -> Tensor | None:
    """The labels as a tensor.

    Raises:
        ConfigError: the images are no floating-point [n,c,h,w] in [0, 1], or the labels no classes of the model.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
        given = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ConfigError("public_images", given, "a floating-point tensor [n,c,h,w] of values in [0, 1]")
    if images.numel():
        low, high = float(images.min()), float(images.max())
        if not (low >= 0 and high <= 1):
            expected = "values in [0, 1]: the model's normalisation is applied for you"
            raise ConfigError("public_images", f"{low:.3g} … {high:.3g}", expected)
    if labels is None:
        return None
    classes = torch.as_tensor(labels)
    if classes.ndim != 1 or classes.is_floating_point() or classes.dtype == torch.bool:
        raise ConfigError("public_labels", f"{classes.dtype} {tuple(classes.shape)}", "one whole number for each image")
    if strange := [label for label in classes.tolist() if not 0 <= label < num_classes]:
        expected = f"classes from 0 to {num_classes - 1}: the model has {num_classes} outputs"
        raise ConfigError("public_labels", strange[0], expected)
    return classes


def most_of(shape: tuple[int, ...]) -> int:
    """How many images of this shape travel."""
    return max(1, min(MOST, MOST_BYTES // max(1, torch.Size(shape).numel())))
