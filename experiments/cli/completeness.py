"""Settings that the command line took away, or that nobody reads, are named before anybody misses them."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from fedsim.errors import ConfigError, nearest

Config = dict[str, Any]

CHOSEN = ("attack", "defense", "tracker")
"""Groups of which several options stand side by side, each with settings of its own."""
OPTIONAL = ("defaults", "hydra", "run_dir", "resume", "resume_every_seconds")
"""What a composition has and a run can do without."""
NAMED = ("matrix.defenses", "matrix.attacks")
"""Groups whose keys are names that users choose."""


def check_complete(config: Config, name: str) -> None:
    """Settings are those of `conf/NAME.yaml` and the simulation: all there, no others, and groups are still groups.

    Raises:
        ConfigError: naming the key.
    """
    check_known(config, name)
    for key, default in _plain(name).items():
        if key in OPTIONAL:
            continue
        if key not in config:
            raise ConfigError(key, "", "missing; leave it as it is instead of taking it away")
        if not isinstance(default, Mapping):
            continue
        if not isinstance(config[key], Mapping):
            raise ConfigError(key, config[key], f"a group of settings: {key}.NAME=VALUE sets one of them")
        if key in CHOSEN:
            _check_options(key, config[key])
        for inner in default:
            if inner not in config[key]:
                raise ConfigError(f"{key}.{inner}", "", "missing; leave it as it is instead of taking it away")


def check_known(config: Config, name: str) -> None:
    """No setting that `conf/NAME.yaml` lacks; Hydra refuses those on the command line alone, not those of a file.

    What a class or a plug-in reads is left to the check of its arguments.

    Raises:
        ConfigError: naming the key, and the nearest one.
    """
    _refuse_unknown(config, _plain(name), "")


def _refuse_unknown(settings: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> None:
    for name, value in settings.items():
        key, default = f"{prefix}{name}", known.get(name)
        if name not in known:
            hint = nearest(str(name), known)
            raise ConfigError(key, value, f"there is no such setting.{hint or ' --cfg job shows them all.'}")
        groups = isinstance(value, Mapping) and isinstance(default, Mapping)
        if groups and default and "_target_" not in default and key not in NAMED:
            _refuse_unknown(value, default, f"{key}.")


def _check_options(group: str, options: Mapping[str, Any]) -> None:
    if isinstance(target := options.get("_target_"), str):
        raise ConfigError(group, target, "in its YAML a name around its settings: 'NAME:', the rest indented")
    for name, settings in options.items():
        if not isinstance(settings, Mapping):
            expected = f"settings: {group}.{name}.NAME=VALUE sets one of them, {group}=[{name}] takes them as they are"
            raise ConfigError(f"{group}.{name}", settings, expected)


@cache
def _plain(name: str) -> dict[str, Any]:
    """The settings as they are before any choice, by their top-level key."""
    loaded = shipped(f"{name}.yaml")
    if "simulation" in loaded:
        loaded["simulation"] = shipped("simulation/ray.yaml")
    return loaded


def shipped(path: str) -> dict[str, Any]:
    """A file of `conf`, its interpolations as they stand."""
    text = files("conf").joinpath(path).read_text("utf-8")
    loaded: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    return dict(loaded)
