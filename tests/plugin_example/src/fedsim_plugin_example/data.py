"""Pictures that are drawn, not loaded."""

import io

import numpy as np
import PIL.Image
import PIL.ImageDraw
from datasets import Dataset

from fedsim.data.sources import Splits, divide, features
from fedsim.determinism import derive_seed
from fedsim.errors import ConfigError

CLASSES = ("disc", "square", "triangle", "cross")
OVERSAMPLING = 4


class Shapes:
    """A light shape on a dark ground, each of random colour, size and place; as many of each class.

    The same in every process: each picture is drawn from (seed, its number).
    """

    def __init__(
        self,
        size: int = 16,
        count: int = 400,
        test_fraction: float | int = 0.2,
        auxiliary_fraction: float | int = 0.1,
        seed: int = 0,
    ) -> None:
        self._size, self._count, self._seed = size, count, seed
        self._fractions = test_fraction, auxiliary_fraction

    def load(self) -> Splits:
        """Raises `ConfigError`: no pixels, or too few pictures for all classes."""
        if self._size < 8:
            raise ConfigError("data.size", self._size, "at least 8 pixels")
        if self._count < len(CLASSES):
            raise ConfigError("data.count", self._count, f"at least {len(CLASSES)}, one of each class")
        labels = [row % len(CLASSES) for row in range(self._count)]
        whole = Dataset.from_dict(
            {
                "image": [{"bytes": self._png(row, CLASSES[label]), "path": None} for row, label in enumerate(labels)],
                "label": labels,
                "id": [f"{CLASSES[label]}-{row:05d}" for row, label in enumerate(labels)],
            },
            features=features(CLASSES),
        )
        rows = divide(labels, *self._fractions, self._seed)
        return Splits(whole.select(rows.train), whole.select(rows.test), whole.select(rows.auxiliary), CLASSES)

    def _png(self, row: int, shape: str) -> bytes:
        rng = np.random.default_rng(derive_seed(self._seed, "shapes", row))
        side = self._size * OVERSAMPLING
        ground, colour = (tuple(map(int, rng.integers(*span, 3))) for span in ((0, 96), (128, 256)))
        radius = rng.uniform(0.2, 0.35) * side
        x, y = rng.uniform(radius, side - radius, 2)
        picture = PIL.Image.new("RGB", (side, side), ground)
        _draw(PIL.ImageDraw.Draw(picture), shape, x, y, radius, colour)
        buffer = io.BytesIO()
        picture.resize((self._size, self._size), PIL.Image.Resampling.BOX).save(buffer, "PNG")
        return buffer.getvalue()


def _draw(
    canvas: PIL.ImageDraw.ImageDraw, shape: str, x: float, y: float, radius: float, colour: tuple[int, ...]
) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "disc":
        canvas.ellipse(box, fill=colour)
    elif shape == "square":
        canvas.rectangle(box, fill=colour)
    elif shape == "triangle":
        canvas.polygon([(x - radius, y + radius), (x + radius, y + radius), (x, y - radius)], fill=colour)
    else:
        third = radius / 3
        canvas.rectangle((x - third, y - radius, x + third, y + radius), fill=colour)
        canvas.rectangle((x - radius, y - third, x + radius, y + third), fill=colour)
