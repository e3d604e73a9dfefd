"""Pictures that come with scikit-learn: nothing to download, small enough for every test.

Imported where they are loaded: it takes a second, and most workers need none.
"""

import io
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import PIL.Image
from jaxtyping import UInt8

from fedsim.data.sources import Splits, divide, features
from fedsim.determinism import derive_seed
from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset

SMALLEST_CROP = 96  # pixels of the photograph's 427 rows: below this, a crop is mostly blur
CANDIDATES = 3


class Digits:
    """1797 handwritten digits of 8x8 pixels, grey as RGB (scikit-learn's `load_digits`, a part of UCI's)."""

    def __init__(self, test_fraction: float | int = 0.2, auxiliary_fraction: float | int = 0.1, seed: int = 0) -> None:
        self._fractions = test_fraction, auxiliary_fraction
        self._seed = seed

    def load(self) -> Splits:
        whole, class_names = _digits()
        rows = divide(whole["label"][:], *self._fractions, self._seed)
        return Splits(whole.select(rows.train), whole.select(rows.test), whole.select(rows.auxiliary), class_names)


@cache
def _digits() -> "tuple[Dataset, tuple[str, ...]]":
    """All of them, and the names of their classes. Encoded once: a sweep loads them for each of its runs."""
    from datasets import Dataset
    from sklearn.datasets import load_digits

    digits = load_digits()
    class_names = tuple(str(name) for name in digits.target_names)
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    columns = {
        "image": [_png(PIL.Image.fromarray(image).convert("RGB")) for image in grey],
        "label": digits.target.tolist(),
        "id": [f"digit-{row:04d}" for row in range(len(grey))],
    }
    return Dataset.from_dict(columns, features=features(class_names)), class_names


class Photos:
    """Square crops of two photographs (scikit-learn's china.jpg and flower.jpg), one class each.

    The splits are cut from three bands of the photographs that share no pixel, so an attack that learns from the
    auxiliary pictures has not seen a client's. Within a split the crops overlap: good for attacks at full
    resolution, no measure of accuracy.
    """

    def __init__(
        self,
        size: int = 224,
        count: int = 64,
        test_fraction: float | int = 0.15,
        auxiliary_fraction: float | int = 0.15,
        seed: int = 0,
    ) -> None:
        self._size = size
        self._count = count
        self._fractions = test_fraction, auxiliary_fraction
        self._seed = seed

    def load(self) -> Splits:
        """Raises `ConfigError`: no pixels, or too few pictures for the splits."""
        if self._size < 1:
            raise ConfigError("data.size", self._size, "a positive number of pixels")
        if self._count < 1:
            raise ConfigError("data.count", self._count, "a positive number of pictures")
        return _photos(self._size, self._count, self._fractions, self._seed)


@lru_cache(maxsize=8)
def _photos(size: int, count: int, fractions: tuple[float | int, float | int], seed: int) -> Splits:
    """Encoded once, as digits are."""
    from datasets import Dataset
    from sklearn.datasets import load_sample_images

    photos = load_sample_images()
    class_names = tuple(name.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0] for name in photos.filenames)
    rows = divide([row % 2 for row in range(count)], *fractions, seed)
    width: int = min(photo.shape[1] for photo in photos.images)
    # The narrow bands are as wide as a crop that still shows something; clients get the rest.
    bands = {"train": (0, width - 240), "test": (width - 240, width - 120), "auxiliary": (width - 120, width)}
    parts = {
        name: Dataset.from_dict(
            _crops(photos.images, class_names, getattr(rows, name), band, size, seed), features=features(class_names)
        )
        for name, band in bands.items()
    }
    return Splits(**parts, class_names=class_names)


def _crops(
    photos: Sequence[UInt8[np.ndarray, "height width 3"]],
    class_names: Sequence[str],
    rows: Sequence[int] | np.ndarray,
    band: tuple[int, int],
    size: int,
    seed: int,
) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {"image": [], "label": [], "id": []}
    for row in map(int, rows):
        label = row % 2
        rng = np.random.default_rng(derive_seed(seed, "photos", row))
        left, top, side = _textured_square(photos[label], band, rng)
        flipped = bool(rng.integers(2))
        crop = PIL.Image.fromarray(photos[label][top : top + side, left : left + side])
        if flipped:
            crop = crop.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
        columns["image"].append(_png(crop.resize((size, size), PIL.Image.Resampling.BICUBIC)))
        columns["label"].append(label)
        columns["id"].append(f"{class_names[label]}-{row:04d}-x{left}-y{top}-s{side}{'-flipped' if flipped else ''}")
    return columns


def _textured_square(
    photo: UInt8[np.ndarray, "height width 3"], band: tuple[int, int], rng: np.random.Generator
) -> tuple[int, int, int]:
    """Left, top and side of a random square within the band's columns, the most varied of a few.

    A square of plain sky would tell nothing of a reconstruction.
    """
    start, end = band
    height = photo.shape[0]
    squares = []
    for _ in range(CANDIDATES):
        side = int(rng.integers(SMALLEST_CROP, min(end - start, height) + 1))
        left, top = int(rng.integers(start, end - side + 1)), int(rng.integers(0, height - side + 1))
        squares.append((left, top, side))
    return max(squares, key=lambda square: _deviation(photo, *square))


def _deviation(photo: UInt8[np.ndarray, "height width 3"], left: int, top: int, side: int) -> float:
    return float(photo[top : top + side, left : left + side].std())


def _png(image: PIL.Image.Image) -> dict[str, bytes | None]:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return {"bytes": buffer.getvalue(), "path": None}
