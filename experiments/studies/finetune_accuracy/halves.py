"""Half of a folder's classes for the public model, the other half for the clients."""

from pathlib import Path

from fedsim.errors import ConfigError

SPLITS = ("train", "val")


def halves(pictures: Path) -> dict[str, tuple[str, ...]]:
    """Names of the `public` classes, the first in their order, and of the `private` ones.

    Raises:
        ConfigError: the folder has not train/ and val/ of the same classes, four or more.
    """
    found = [
        sorted(one.name for one in folder.iterdir() if one.is_dir()) if (folder := pictures / split).is_dir() else []
        for split in SPLITS
    ]
    if found[0] != found[1] or len(found[0]) < 4:
        raise ConfigError("--pictures", pictures, "a folder with train/ and val/ of the same classes, four or more")
    half = len(found[0]) // 2
    return {"public": tuple(found[0][:half]), "private": tuple(found[0][half:])}


def linked(pictures: Path, out: Path) -> dict[str, Path]:
    """Folders below `out` with links to class folders: `public`, `private`, and `held`, of private train/ alone.

    Raises:
        ConfigError: as `halves`.
    """
    places = {}
    for half, names in halves(pictures).items():
        places[half] = out / "classes" / half
        for split in SPLITS:
            _link(places[half] / split, pictures / split, names)
    places["held"] = out / "classes" / "held"
    _link(places["held"], pictures / "train", halves(pictures)["private"])
    return places


def _link(folder: Path, source: Path, names: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(source / name, target_is_directory=True)
