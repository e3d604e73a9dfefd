"""The run folder: where everything is, and files that are whole or absent."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from fedsim.errors import ConfigError
from fedsim.settings.places import unwritable
from fedsim.storage import json_lines
from fedsim.storage.durable import locked, replacing, write_whole
from fedsim.update import State

UNCHANGED = "nothing was aggregated: the model is unchanged"
"""A whole round's failure in `metrics.jsonl`."""


class RunFolder:
    """Paths inside one run's folder, and the writing of its JSON lines and checkpoints.

    Raises:
        ConfigError: the folder cannot be created or written to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root, prefix=".writable-"):  # a name that no other process takes
                pass
        except OSError as error:
            raise ConfigError("run_dir", root, unwritable(error)) from error

    def locked(self) -> AbstractContextManager[None]:
        """See `fedsim.storage.durable.locked`."""
        return locked(self.root)

    def check_room(self, needed: int, purpose: str) -> None:
        """Raises ConfigError where fewer than `needed` bytes are free."""
        free = shutil.disk_usage(self.root).free
        if free < needed:
            words = f"a folder with {_size(needed)} free for {purpose}, not {_size(free)}"
            raise ConfigError("run_dir", self.root, words)

    @property
    def observations(self) -> Path:
        return self._part("observations")

    @property
    def reconstructions(self) -> Path:
        return self._part("reconstructions")

    @property
    def checkpoints(self) -> Path:
        return self._part("checkpoints")

    @property
    def log(self) -> Path:
        return self.root / "fedsim.log"

    @property
    def resume_points(self) -> Path:
        return self.root / "resume"

    def _part(self, name: str) -> Path:
        """A folder in it, made when it is first asked for: a run that records nothing there has none."""
        part = self.root / name
        part.mkdir(exist_ok=True)
        return part

    def mend(self, name: str) -> None:
        """Cut the half line off that a crash left at the end of NAME.jsonl, before anything is added to it."""
        json_lines.mend(self.root / f"{name}.jsonl")

    def append(self, name: str, row: dict[str, Any]) -> None:
        """Add one line to NAME.jsonl and force it to disk: finished work survives a crash."""
        json_lines.append_row(self.root / f"{name}.jsonl", row)

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The complete lines of NAME.jsonl; a line torn by a crash is passed over."""
        return json_lines.rows(self.root / f"{name}.jsonl")

    def keep_rows(self, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Leave in NAME.jsonl the complete lines that are wanted, byte for byte, and no others."""
        path = self.root / f"{name}.jsonl"
        if not path.exists():
            return
        after = b"".join(line for line, row in json_lines.with_lines(path) if wanted(row))
        if after != path.read_bytes():
            write_whole(path, after)

    def write_text(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        write_whole(self.root / name, text.encode())

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=1, sort_keys=True))

    def save_checkpoint(
        self, state: State, server_round: int, keep: int = 2, note: tuple[str, str] | None = None
    ) -> None:
        """Write the global state as safetensors and keep the last `keep`.

        Args:
            note: key and value for the file's metadata, in place of the round's number. One alone: safetensors writes
                several in no fixed order, and equal runs have equal files.
        """
        path = self.checkpoints / f"round-{server_round:05d}.safetensors"
        metadata = dict([note or ("server_round", str(server_round))])
        with replacing(path) as partial:
            save_file({name: tensor.contiguous() for name, tensor in state.items()}, partial, metadata)
        saved = self._saved()
        for old in sorted(saved)[:-keep]:
            saved[old].unlink()

    def drop_checkpoints(self, after: int) -> None:
        """Remove those of rounds after this one: a run that went back there makes them anew."""
        for server_round, path in self._saved().items():
            if server_round > after:
                path.unlink()

    def _saved(self) -> dict[int, Path]:
        """Checkpoints by round."""
        found = (self.root / "checkpoints").glob("round-*.safetensors")
        return {int(number): path for path in found if (number := path.stem.removeprefix("round-")).isdecimal()}


def _size(count: float) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} KB"
