"""What trackers with a library of their own share: the library, the settings, the run to go on with."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from fedsim.errors import ConfigError
from fedsim.storage.durable import write_whole

KEPT = "run.json"
"""In a tracker's folder: which of the service's runs this is."""


def library(extra: str, *modules: str) -> list[Any]:
    """The modules of an optional dependency.

    Raises:
        ConfigError: one is not installed; it names the extra that brings it.
    """
    try:
        return [import_module(name) for name in modules]
    except ImportError as error:
        words = f"a tracker whose library is installed ({error}): pip install -e '.[{extra}]' in the clone"
        raise ConfigError("tracker", extra, words) from error


def kept_run(folder: Path) -> dict[str, Any] | None:
    """What `keep_run` wrote into a tracker's folder; None for a new run.

    Raises:
        ConfigError: it cannot be read.
    """
    path = folder / KEPT
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = None
    if not isinstance(kept, dict) or not isinstance(kept.get("id"), str):
        words = "a file that names a run, or no file: then another run begins"
        raise ConfigError(f"tracker.{folder.name}", path, words)
    return kept


def keep_run(folder: Path, run: str, **values: Any) -> None:
    """Keep the number of the run, so that a resumed run goes on with the same one of the service."""
    write_whole(folder / KEPT, json.dumps({"id": run, **values}).encode())


def run_settings(folder: Path) -> dict[str, Any]:
    """The resolved configuration of the run whose folder holds the tracker's; empty where there is none."""
    path = folder.parent / "config.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    return settings if isinstance(settings, dict) else {}


def flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(`client.batch_size`, `1`) for every value of nested settings, lists as JSON."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)
