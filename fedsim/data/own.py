"""A data set of the user's own, in memory, as the data of an audit."""

from collections.abc import Sequence
from typing import Any, Literal

import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms import functional as transforms

from fedsim.data.federated import FederatedData
from fedsim.data.pictures import UNREADABLE, one_line, upright_rgb
from fedsim.data.tensors import TensorImages
from fedsim.determinism import torch_generator
from fedsim.errors import ConfigError

Own = Any
"""A torch data set of (image, label), or a pair of tensors [n,C,H,W] and [n]."""

PUBLIC = 64
"""Images besides those attacked that stand for what is public; at most."""


class OwnData(FederatedData):
    """Images to attack, and others that no client holds; nothing is divided among clients.

    Attributes:
        train: the images to attack, in the order of their choice.
        auxiliary: others of the same data set, for the guess without a gradient and for label attacks.
    """

    def __init__(self, train: TensorImages, auxiliary: TensorImages, class_names: Sequence[str]) -> None:
        self.train = train
        self.auxiliary = auxiliary
        self.test = train.subset([])
        self._class_names = tuple(class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for each output of the model."""
        return self._class_names


def check_own(dataset: Own) -> None:
    """Raises ConfigError for what is neither a data set of pairs nor a pair of tensors."""
    expected = "a data set of pairs (image, label), or (images, labels), two tensors"
    sized = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, Tensor) or not sized:
        raise ConfigError("dataset", type(dataset).__name__, expected)
    if _pair(dataset) or not len(dataset):
        return
    first = dataset[0]
    if not isinstance(first, tuple | list) or len(first) < 2:
        raise ConfigError("dataset", f"{type(dataset).__name__} of {type(first).__name__}", expected)


def _pair(dataset: Own) -> bool:
    return isinstance(dataset, tuple | list) and len(dataset) == 2 and all(isinstance(one, Tensor) for one in dataset)


def own_data(
    dataset: Own,
    shape: tuple[int, int, int],
    num_classes: int,
    num_images: int,
    select: Literal["random", "first"],
    seed: int,
) -> OwnData:
    """`num_images` of the data set to attack, and up to `PUBLIC` others.

    Images of PIL become [C,H,W] in [0, 1] of the size that the model reads, upright, 16-bit grey by its upper byte;
    tensors must have it.

    Raises:
        ConfigError: too few images, images of another shape, labels without an output.
    """
    check_own(dataset)
    pair = _pair(dataset)
    if pair and len(dataset[0]) != len(dataset[1]):
        raise ConfigError("dataset", f"{len(dataset[0])} images, {len(dataset[1])} labels", "as many of each")
    count = len(dataset[0]) if pair else len(dataset)
    if not isinstance(num_images, int) or not 1 <= num_images <= count:
        raise ConfigError("num_images", num_images, f"from 1 to {count}, the images of the data set")
    if select not in ("random", "first"):
        raise ConfigError("select", select, "random or first")
    order = torch.randperm(count, generator=torch_generator(seed, "audit")).tolist()
    chosen = order[:num_images] if select == "random" else list(range(num_images))
    taken = set(chosen)
    others = [place for place in order if place not in taken][:PUBLIC]
    get = (lambda place: (dataset[0][place], dataset[1][place])) if pair else dataset.__getitem__
    names = [str(name) for name in getattr(dataset, "classes", ())]
    if len(names) > num_classes:
        raise ConfigError("model", num_classes, f"{len(names)} outputs at least: the data set has so many classes")
    names += [str(number) for number in range(len(names), num_classes)]
    attacked, public = (
        _held([(place, *get(place)[:2]) for place in places], shape, num_classes) for places in (chosen, others)
    )
    return OwnData(attacked, public, names)


def _held(rows: list[tuple[int, Any, Any]], shape: tuple[int, int, int], num_classes: int) -> TensorImages:
    images = [_image(image, shape, place) for place, image, _ in rows]
    labels = [_label(label, place) for place, _, label in rows]
    for (place, _, _), label in zip(rows, labels, strict=True):
        if not 0 <= label < num_classes:
            raise ConfigError(f"dataset[{place}]", label, f"a class from 0 to {num_classes - 1}, the model's outputs")
    stacked = torch.stack(images) if images else torch.zeros(0, *shape)
    return TensorImages(
        stacked, torch.tensor(labels, dtype=torch.int64), [f"image-{place:05d}" for place, _, _ in rows]
    )


def _label(label: Any, place: int) -> int:
    try:
        found = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"dataset[{place}]", label, "labelled by a whole number") from error
    if found.numel() != 1 or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise ConfigError(f"dataset[{place}]", label, "labelled by a whole number")
    return int(found)


def _covering(picture: Any, shape: tuple[int, int, int]) -> list[int]:
    """The size to which an image is resized before the model's is cut out of it; one number is the shorter side."""
    _, height, width = shape
    if height == width:
        return [height]
    scale = max(height / picture.height, width / picture.width)
    return [max(height, round(scale * picture.height)), max(width, round(scale * picture.width))]


def _image(image: Any, shape: tuple[int, int, int], place: int) -> Tensor:
    if isinstance(image, Tensor):
        result = image
    else:
        if not isinstance(image, PIL.Image.Image):
            raise ConfigError(f"dataset[{place}]", type(image).__name__, "an image of PIL or a tensor")
        try:
            picture = upright_rgb(image)
        except UNREADABLE as error:
            raise ConfigError(f"dataset[{place}]", f"a picture of mode {image.mode}", fault=one_line(error)) from error
        if shape[0] == 1:
            picture = picture.convert("L")
        if picture.size != (shape[2], shape[1]):
            picture = transforms.center_crop(transforms.resize(picture, _covering(picture, shape)), list(shape[1:]))
        result = transforms.to_tensor(picture)
    if tuple(result.shape) != shape or not result.is_floating_point():
        given = f"{result.dtype} {tuple(result.shape)}"
        raise ConfigError(f"dataset[{place}]", given, f"floating-point {shape}, which the model reads")
    low, high = float(result.min()), float(result.max())
    if not (low >= 0 and high <= 1):
        expected = "values in [0, 1]: leave normalisation to mean= and std="
        raise ConfigError(f"dataset[{place}]", f"{low:.3g} … {high:.3g}", expected)
    return result.float() if result.dtype == torch.bfloat16 else result  # which NumPy lacks
