"""Folders of class folders, as far as their names tell: which is the training set's, and which classes it has."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.settings.places import class_folders

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}
)
TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("val", "valid", "validation", "test", "testing")


def layout(root: Path) -> tuple[str, str | None, list[str]]:
    """The training folder, the test folder, and those left unused, relative to the root ("" is the root itself).

    Raises:
        ConfigError: without a training folder, class folders lie beside a test folder.
    """
    folders = {folder.name.lower(): folder for folder in visible_folders(root)}
    named = [name for name in (*TRAIN_NAMES, *TEST_NAMES) if name in folders]
    only_splits = len(named) == len(folders) > 0
    inside = {name: {child.name for child in visible_folders(folders[name])} for name in named}
    alike = any(one & other for one, other in itertools.combinations(inside.values(), 2))
    found = [folders[name].name for name in named if _is_split(folders[name], only_splits or alike)]
    if not found:
        # Split folders without class folders are no classes either: the first is named in the refusal.
        return (folders[min(folders)].name if only_splits else ""), None, []
    trained = found[0].lower() in TRAIN_NAMES
    others = [folder for folder in folders.values() if folder.name not in found]
    tested = inside[found[0].lower()]
    if not trained and (classes := [one.name for one in others if one.name in tested or _holds_pictures(one)]):
        words = f"{classes[0]}, with pictures, lies beside {found[0]}; expected class folders alone, or train and test"
        raise ConfigError("data.path", root, fault=words)
    tests = [name for name in found[1:] if name.lower() in TEST_NAMES] if trained else []
    used = [found[0], *tests[:1]]
    unused = [name for name in found if name not in used]
    return used[0], used[1] if tests else None, [*unused, *(folder.name for folder in others)]


def classes_in(folder: Path) -> list[Path]:
    """The class folders of a training or test set, sorted.

    Raises:
        ConfigError: there are none.
    """
    classes = visible_folders(folder)
    if not classes:
        found = "pictures, but no class folders" if _holds_pictures(folder) else "no class folders"
        raise ConfigError("data.path", folder, fault=f"holds {found}; expected one folder of pictures per class")
    return classes


def check_class_folders(path: object, model: Mapping[str, Any]) -> None:
    """Raises ConfigError where there is nothing that `model` could tell apart; no picture is looked for."""
    root = class_folders(path)
    try:
        count = len(classes_in(root / layout(root)[0]))
    except OSError as error:
        raise ConfigError("data.path", path, f"a folder that can be read ({error.strerror})") from error
    refuse_one_class("data.path", path, count, model)


def refuse_one_class(key: str, value: object, count: int, model: Mapping[str, Any]) -> None:
    """A model of one class is always right: its loss is constant, and there is no gradient to train or attack.

    Args:
        key: the setting that names the data.
        count: the classes of the data.

    Raises:
        ConfigError: the model has one class, by its own setting or as many as the data.
    """
    stated = model.get("num_classes")
    if stated == 1 and count <= 1:
        raise ConfigError("model.num_classes", 1, "at least 2: over one class the loss is constant, its gradient 0")
    if stated is None and count < 2:
        wanted = "at least two, or model.num_classes=2 or more: over one class the loss is constant, its gradient 0"
        raise ConfigError(key, value, fault=f"holds one class; there must be {wanted}")


def visible_folders(folder: Path) -> list[Path]:
    """Sorted."""
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS  # noqa: PTH122 - a name only


def _is_split(folder: Path, no_classes: bool) -> bool:
    """A class may be called `train` too: beside other classes, and then it holds its pictures directly."""
    return bool(visible_folders(folder)) and (no_classes or not _holds_pictures(folder))


def _holds_pictures(folder: Path) -> bool:
    return any(is_image(child.name) for child in folder.iterdir())
