"""A folder of class folders on disk, read where it lies."""

import itertools
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import PIL.Image

from fedsim.data.pictures import UNREADABLE, one_line
from fedsim.data.sources import Splits, divide, features
from fedsim.errors import ConfigError
from fedsim.settings.class_folders import EXTENSIONS, classes_in, is_image, layout
from fedsim.settings.places import class_folders

if TYPE_CHECKING:
    from datasets import Dataset

HEADER_THREADS = 8

logger = logging.getLogger(__name__)


class ImageFolder:
    """One folder a class, or `train/` and `val/` (`valid/`, `validation/`, `test/`) that hold one folder a class.

    With a training and a test folder, the test folder is the test set and the auxiliary pictures are taken out of
    the training folder. With one of them, or none, the fractions divide all there is. Of several test folders the
    first in the order above counts: a `test/` beside a `val/` mostly has no labels. Class folders are searched to
    any depth. An id is the path relative to `path`.

    Attributes:
        verify: open every file's header while loading, so that a broken file is named before anything starts.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        test_fraction: float | int = 0.1,
        auxiliary_fraction: float | int = 0.1,
        seed: int = 0,
        verify: bool = True,
    ) -> None:
        self._path = path
        self._fractions = test_fraction, auxiliary_fraction
        self._seed = seed
        self._verify = verify

    @property
    def _root(self) -> Path:
        return Path(self._path or "").expanduser()

    def load(self) -> Splits:
        """Raises `ConfigError`: no such folder, no class folders, a class without pictures, unreadable files."""
        class_folders(self._path)
        train_folder, test_folder, unused = layout(self._root)
        if unused:
            used = [name for name in (train_folder, test_folder) if name]
            logger.warning("%s: not used: %s, only %s", self._root, _few(unused), _few(used))
        train = self._images_by_class(train_folder)
        test = self._images_by_class(test_folder) if test_folder else {}
        class_names = tuple(train)
        if unknown := [name for name in test if name not in train]:
            raise ConfigError(
                "data.path",
                self._root,
                fault=f"{test_folder} has class folders that {train_folder} lacks: {_few(unknown)}",
            )
        if self._verify:
            self._check_headers([*itertools.chain(*train.values(), *test.values())])

        whole = self._dataset(train, class_names)
        test_fraction, auxiliary_fraction = self._fractions
        rows = divide(whole["label"][:], 0.0 if test else test_fraction, auxiliary_fraction, self._seed)
        if test:
            test_set = self._dataset(test, class_names)
            test_set = test_set.select(divide(test_set["label"][:], 0.0, 0.0, self._seed).train)
        else:
            test_set = whole.select(rows.test)
        return Splits(whole.select(rows.train), test_set, whole.select(rows.auxiliary), class_names)

    def _images_by_class(self, split: str) -> dict[str, list[str]]:
        """Paths relative to the root, sorted, by class name, sorted."""
        folder = self._root / split
        images = {child.name: _images_below(child, self._root) for child in classes_in(folder)}
        if empty := [name for name, paths in images.items() if not paths]:
            known = " ".join(sorted(extension[1:] for extension in EXTENSIONS))
            raise ConfigError(
                "data.path", folder, fault=f"no pictures in class folder {_few(empty)} (looked for {known})"
            )
        return images

    def _dataset(self, images: dict[str, list[str]], class_names: tuple[str, ...]) -> "Dataset":
        from datasets import Dataset

        paths = [path for of_class in images.values() for path in of_class]
        number = {name: label for label, name in enumerate(class_names)}
        labels = [number[name] for name, of_class in images.items() for _ in of_class]
        try:
            return Dataset.from_dict(
                {"image": [str(self._root / path) for path in paths], "label": labels, "id": paths},
                features=features(class_names),
            )
        except UnicodeEncodeError as error:
            raise ConfigError("data.path", self._root, fault=f"a file name is not UTF-8: {error.object!a}") from error

    def _check_headers(self, paths: list[str]) -> None:
        with ThreadPoolExecutor(HEADER_THREADS) as pool:
            faults = [fault for fault in pool.map(self._header_fault, paths, chunksize=64) if fault]
        if faults:
            noun = "1 file cannot" if len(faults) == 1 else f"{len(faults)} files cannot"
            raise ConfigError("data.path", self._root, fault=f"{noun} be read as a picture: {_few(faults)}")

    def _header_fault(self, path: str) -> str | None:
        try:
            with PIL.Image.open(self._root / path):
                return None
        except UNREADABLE as error:
            return f"{path} ({one_line(error)})"


def _images_below(folder: Path, root: Path) -> list[str]:
    def refuse(error: OSError) -> None:
        raise ConfigError("data.path", root, fault=f"cannot be read: {error.filename} ({error.strerror})") from error

    found = []
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        relative = Path(parent).relative_to(root)
        found += [(relative / name).as_posix() for name in names if is_image(name)]
    return sorted(found)


def _few(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
