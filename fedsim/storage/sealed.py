"""Numbered states in folders that are whole or absent: the newest whole one is found again after any crash."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import fedsim
from fedsim.errors import ConfigError
from fedsim.storage.digests import file_sha256
from fedsim.storage.durable import disk_errors, sync
from fedsim.storage.nested import flatten, unflatten

FORMAT = 1
ARRAYS, VALUES, MANIFEST = "arrays.safetensors", "values.json", "manifest.json"
VERSIONS = {"fedsim": fedsim.__version__, "torch": torch.__version__, "flwr": version("flwr")}
LONGEST_HEADER = 100_000_000
"""Bytes: safetensors files with a longer one cannot be read."""


class SealedStates:
    """`round-00012` holds arrays as safetensors, everything else as JSON, and a manifest with a sha256 of both.

    Args:
        keep: so many of the newest; older ones are removed once a newer one is sealed.
    """

    def __init__(self, root: Path, keep: int = 2) -> None:
        self.root = root
        self._keep = keep

    def numbers(self) -> list[int]:
        """Numbers of the sealed states, ascending; whether they are whole is not known before they are read."""
        found = [re.fullmatch(r"round-(\d{5,})", path.name) for path in self.root.glob("round-*")]
        return sorted(int(match[1]) for match in found if match)

    def write(self, number: int, state: Any) -> int:
        """Seal a state; its bytes on disk. Where that fails the earlier ones are as they were.

        Raises:
            OSError: the disk is full, or the like.
            TypeError, ValueError: the state holds something that cannot be kept.
        """
        values, arrays = flatten(state)
        partial, path = self.root / "partial", self._path(number)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            self.root.mkdir(exist_ok=True)
            partial.mkdir()
            size = _write(partial, values, arrays)
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
            for folder in (self.root, self.root.parent):
                sync(folder)
        except (OSError, ValueError):
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for old in self.numbers()[: -self._keep]:
            shutil.rmtree(self._path(old))
        return size

    def newest(self, say: Callable[[str], None]) -> tuple[int, Any] | None:
        """The newest whole state and its number; those after it, damaged as they are, are removed.

        Args:
            say: told about each damaged state, and about one that other versions wrote.

        Raises:
            ConfigError: there are states, but none is whole, or they are of another format.
        """
        damaged: list[int] = []
        for number in reversed(self.numbers()):
            try:
                state = _read(self._path(number), say)
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
                damaged.append(number)
                say(f"{self._path(number)} is damaged: {' '.join(str(error).split())}")
                continue
            for after in damaged:
                shutil.rmtree(self._path(after))
            return number, state
        if damaged:
            raise ConfigError("resume", self.root.parent, fault="every resume point in it is damaged: start a new run")
        return None

    def _path(self, number: int) -> Path:
        return self.root / f"round-{number:05d}"


def _write(folder: Path, values: Any, arrays: dict[str, Any]) -> int:
    with disk_errors(folder / ARRAYS):
        save_file(arrays, folder / ARRAYS)
    with (folder / ARRAYS).open("rb") as file:
        if int.from_bytes(file.read(8), "little") > LONGEST_HEADER:
            raise ValueError(f"{len(arrays)} arrays are too many for one file")
    (folder / VALUES).write_text(json.dumps(values), encoding="utf-8")
    files = {name: {"sha256": file_sha256(folder / name)} for name in (ARRAYS, VALUES)}
    manifest = {"format": FORMAT, "versions": VERSIONS, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for name in (ARRAYS, VALUES, MANIFEST):
        sync(folder / name)
    sync(folder)
    return sum((folder / name).stat().st_size for name in (ARRAYS, VALUES, MANIFEST))


def _read(folder: Path, say: Callable[[str], None]) -> Any:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest["format"] != FORMAT:
        raise ConfigError("resume", folder, f"a resume point of format {FORMAT}, not {manifest['format']}")
    for name in (ARRAYS, VALUES):
        if file_sha256(folder / name) != manifest["files"][name]["sha256"]:
            raise ValueError(f"{name} is not what was written")
    values = json.loads((folder / VALUES).read_text(encoding="utf-8"))
    with safe_open(folder / ARRAYS, framework="np") as file:
        state = unflatten(values, file.get_tensor)
    others = [f"{name} {version}" for name, version in manifest["versions"].items() if VERSIONS.get(name) != version]
    if others:
        say(f"{folder} was written by {', '.join(others)}: from here on the bits may be others")
    return state
