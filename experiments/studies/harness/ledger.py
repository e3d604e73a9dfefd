"""Results on disk as they come, one JSON object a line: what a killed run had finished is not done again."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.engine.folders import first_difference
from fedsim.errors import ConfigError
from fedsim.storage.durable import append_whole, locked, write_text
from fedsim.storage.json_lines import mend, rows
from fedsim.storage.json_objects import read_object

Entry = dict[str, Any]


class Ledger:
    """The lines of a file that one process writes.

    Attributes:
        entries: in the order in which they were written.
    """

    def __init__(self, path: Path) -> None:
        """Read what an earlier call wrote; the line that it was killed in is cut off.

        Raises:
            DamagedFileError: a line before it is no result.
        """
        self.path = path
        self.entries: list[Entry] = list(rows(path))
        mend(path)

    def add(self, entry: Entry) -> None:
        """Write one line; it is in the file when this returns."""
        line = json.dumps(entry, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self.path, line.encode())
        self.entries.append(entry)


@contextmanager
def kept(out: Path, settings: Mapping[str, Any]) -> Iterator[Ledger]:
    """The results in a folder, which is made where it is not there; for the block no other call may work in it.

    Args:
        settings: what the results depend on.

    Raises:
        ConfigError: another call is at work there, or the folder holds results of other settings.
    """
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "--out"):
        settle(out / "settings.json", settings)
        yield Ledger(out / "results.jsonl")


def settle(path: Path, settings: Mapping[str, Any]) -> None:
    """Write down what results depend on, or hold it against what an earlier call wrote.

    Raises:
        ConfigError: the folder holds results of other settings.
        DamagedFileError: what an earlier call wrote cannot be read.
    """
    asked = json.loads(json.dumps(settings))
    if path.exists():
        if differs := first_difference(read_object(path), asked):
            key, there, now = differs
            fault = f"a new folder, this one holds results of other settings: {key}={there} there, {now} now"
            raise ConfigError("--out", path.parent, fault)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asked, indent=1))
