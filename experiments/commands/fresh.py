"""Hydra makes a run's folder before anything is known of its settings: where nothing came of the run, it goes again."""

import fcntl
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

LOCK = ".lock"
HYDRAS = (".hydra", "multirun.yaml", LOCK)
"""What is in the folder of a run before the run writes anything; the lock is ours."""

_stood: dict[Path, Path] = {}
"""The folders that Hydra was about to make, and of each the nearest one above that was there before."""


class FreshFolders(Callback):
    """Hydra calls it before it makes folders."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        note(Path(str(config.hydra.run.dir)))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        note(Path(str(config.hydra.sweep.dir)))


def note(folder: Path) -> None:
    """What of this path is there now stays."""
    folder = folder.absolute()
    _stood[folder] = next(parent for parent in (folder, *folder.parents) if parent.exists())


def about_to_make() -> Path | None:
    """The folder that Hydra was last about to make; None before any."""
    return next(reversed(_stood), None)


def forget() -> None:
    """Another command begins in this process."""
    _stood.clear()


def remove_all_unused() -> None:
    """Remove every unused folder: those of a sweep's runs are gone by then, but not its own."""
    for folder in _stood:
        remove_unused(folder)


def remove_unused(folder: Path) -> None:
    """Remove a folder in which no run has left anything, and empty ones above it, but none that stood before.

    One that another process is at work in stays, with its lock: without that a third would work beside it.
    """
    folder = folder.absolute()
    stood = [stood for made, stood in _stood.items() if made == folder or made in folder.parents]
    if not stood or not folder.is_dir() or not _is_unused(folder) or _is_locked(folder):
        return
    for name in HYDRAS:
        path = folder / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    with suppress(OSError):  # the first that holds something else
        for one in (folder, *folder.parents):
            if one in stood:
                return
            _remove_empty(one)


def _is_unused(folder: Path) -> bool:
    return all(path.is_dir() or path.relative_to(folder).parts[0] in HYDRAS for path in folder.rglob("*"))


def _is_locked(folder: Path) -> bool:
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or the file system has no locks
        return False
    return False


def _remove_empty(folder: Path) -> None:
    """With empty folders in it; raises OSError where there is a file."""
    for path in folder.iterdir():
        _remove_empty(path)
    folder.rmdir()
