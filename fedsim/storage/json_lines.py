"""Files of one JSON object a line, that a crash may tear at their end and nowhere else."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.storage.durable import append_whole, write_whole
from fedsim.storage.json_objects import json_object

Row = dict[str, Any]


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line and force it to disk: it is in the file when this returns."""
    append_whole(path, (json.dumps(row, sort_keys=True) + "\n").encode())


def rows(path: Path) -> Iterator[Row]:
    """The rows of the complete lines; none where there is no file.

    Raises:
        DamagedFileError: a complete line is no JSON object.
    """
    return (row for _, row in with_lines(path))


def with_lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    """The complete lines with their rows; raises DamagedFileError as `rows` does."""
    for number, line in enumerate(complete_lines(path), 1):
        yield line, json_object(line, f"{path}, line {number}")


def complete_lines(path: Path) -> list[bytes]:
    """All but one that a crash tore, or that is just being written."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def mend(path: Path) -> None:
    """Cut off the line that a crash tore, before anything is added."""
    if path.exists() and (whole := b"".join(complete_lines(path))) != path.read_bytes():
        write_whole(path, whole)
