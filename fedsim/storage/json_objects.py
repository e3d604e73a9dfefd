"""JSON that fedsim wrote, read again: a disk or another hand may have changed it since."""

import json
from pathlib import Path
from typing import Any

from fedsim.errors import RunError

JsonObject = dict[str, Any]


class DamagedFileError(RunError, ValueError):
    """A file of fedsim's that no longer says what fedsim wrote, in one line that names it."""

    def __init__(self, name: object, lacks: str = "a JSON object") -> None:
        super().__init__(f"{name}: damaged, it must hold {lacks}")


def json_object(text: str | bytes, name: object) -> JsonObject:
    """Raises DamagedFileError: the text is no JSON object.

    Args:
        name: of the file, and of the line in it.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(name) from error
    if not isinstance(found, dict):
        raise DamagedFileError(name)
    return found


def read_object(path: Path) -> JsonObject:
    """Raises DamagedFileError: the file is no JSON object."""
    return json_object(path.read_bytes(), path)
