"""Small folders of pictures."""

from collections.abc import Callable, Mapping
from pathlib import Path

import PIL.Image
import pytest

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
