"""Attacks and defenses by the names that the commands know: the options of `conf`."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from omegaconf import OmegaConf

from fedsim.errors import ConfigError, nearest
from fedsim.settings.components import TARGET

Settings = dict[str, Any]


def options(group: str) -> list[str]:
    """The names in a group of `conf`, such as `attack`, in alphabetical order."""
    return sorted(PurePath(file.name).stem for file in files("conf").joinpath(group).iterdir() if ".yaml" in file.name)


def option(group: str, name: str, changes: Mapping[str, Any] | None = None, objects: bool = False) -> Settings:
    """The settings of an option with some changed, nested ones by nested dictionaries.

    Args:
        objects: the caller takes an object as well, which is said to who meant one of their own.

    Raises:
        ConfigError: there is no such option. A setting that it does not have is refused where it is built.
    """
    names = options(group)
    if name not in names:
        own = f" One of your own is given as an object; commands find its YAML in DIR/{group} with --config-dir DIR."
        hint = nearest(str(name), names) or (own if objects else "")
        raise ConfigError(group, name, fault=f"there is no such option.{hint} Options are {', '.join(names)}.")
    text = files("conf").joinpath(group, f"{name}.yaml").read_text(encoding="utf-8")
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
