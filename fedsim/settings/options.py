"""Attacks and defenses by the names that the commands know: the options of `conf`."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any

from hydra._internal.utils import create_config_search_path
from omegaconf import OmegaConf

from fedsim.errors import ConfigError, nearest
from fedsim.settings.components import TARGET

Settings = dict[str, Any]


def options(group: str) -> list[str]:
    """The names in a group of `conf`, such as `attack`, those of installed packages too, in alphabetical order."""
    return sorted(_files(group))


def _files(group: str) -> dict[str, Traversable]:
    """By name. Where two have the same, the first place on Hydra's search path is taken, which is fedsim's own."""
    found: dict[str, Traversable] = {}
    for folder in (place.joinpath(group) for place in _places()):
        for file in folder.iterdir() if folder.is_dir() else ():
            if file.name.endswith(".yaml"):
                found.setdefault(PurePath(file.name).stem, file)
    return found


@cache
def _places() -> tuple[Traversable, ...]:
    """Packages on Hydra's search path, as its plug-ins make it in every command."""
    places = []
    for element in create_config_search_path("pkg://conf").get_path():
        scheme, _, package = (element.path or "").partition("://")
        if scheme == "pkg":
            with suppress(ModuleNotFoundError):  # a plug-in that is not all there is Hydra's to complain of
                places.append(files(package))
    return tuple(places)


def option(group: str, name: str, changes: Mapping[str, Any] | None = None, objects: bool = False) -> Settings:
    """The settings of an option with some changed, nested ones by nested dictionaries.

    Args:
        objects: the caller takes an object as well, which is said to who meant one of their own.

    Raises:
        ConfigError: there is no such option. A setting that it does not have is refused where it is built.
    """
    found = _files(group)
    if name not in found:
        own = f" One of your own is given as an object; commands find its YAML in DIR/{group} with --config-dir DIR."
        hint = nearest(str(name), sorted(found)) or (own if objects else "")
        raise ConfigError(group, name, fault=f"there is no such option.{hint} Options are {', '.join(sorted(found))}.")
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(f"{group}.{name}", changes, "settings by name, as in {name: {setting: value}}")
    text = found[name].read_text(encoding="utf-8")
    read: Any = OmegaConf.to_container(OmegaConf.create(text))
    return merged(read if TARGET in read else read[name], changes or {})


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """A copy with the changes put in; an object that is named anew by its `_target_` takes the place of the old one."""
    result = dict(settings)
    for key, value in changes.items():
        old = result.get(key)
        nested = isinstance(value, Mapping) and isinstance(old, Mapping) and TARGET not in value
        result[key] = merged(old, value) if nested and isinstance(old, Mapping) else value
    return result
