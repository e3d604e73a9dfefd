"""Small folders of pictures, and a source that costs nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Value

from fedsim.data import Splits
from fedsim.data.sources import features

WriteFolder = Callable[..., Path]


@pytest.fixture
def write_folder(tmp_path: Path) -> WriteFolder:
    """Writes `{"train/cat": 3}` as three small pictures in train/cat, each of its own colour."""

    def write(counts: Mapping[str, int], extension: str = "png", root: Path = tmp_path / "pictures") -> Path:
        for folder, count in counts.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                colour = (len(folder) * 7 % 256, number * 11 % 256, sum(map(ord, folder)) % 256)
                PIL.Image.new("RGB", (10, 8), colour).save(root / folder / f"{number:03d}.{extension}")
        return root

    return write


class Table:
    """A source of `per_class` one-colour pictures for each class, whose files need not exist unless decoded."""

    def __init__(self, per_class: int = 60, num_classes: int = 5, root: Path | None = None) -> None:
        self.per_class, self.num_classes, self.root = per_class, num_classes, root or Path("nowhere")

    def load(self) -> Splits:
        class_names = tuple(f"class{label}" for label in range(self.num_classes))
        rows = np.random.default_rng(0).permutation(self.per_class * self.num_classes)
        columns = {
            "image": [str(self.root / f"{row}.png") for row in rows],
            "label": [int(row % self.num_classes) for row in rows],
            "id": [f"row{row}" for row in rows],
            "writer": [f"writer{row % 7}" for row in rows],
        }
        of_columns = features(class_names)
        of_columns["writer"] = Value("string")
        whole = Dataset.from_dict(columns, features=of_columns)
        return Splits(whole, whole.select(range(2)), whole.select([]), class_names)
