"""Settings that the command line took away are named, before anybody misses them."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from fedsim.composition import Config
from fedsim.errors import ConfigError

CHOSEN = ("attack", "defense", "tracker")
"""Groups of which several options stand side by side, each with settings of its own."""
OPTIONAL = ("defaults", "hydra", "run_dir", "resume", "resume_every_seconds")
"""What a composition has and a run can do without."""


def check_complete(config: Config, name: str) -> None:
    """Whatever `conf/NAME.yaml` and the simulation's settings have is there, and groups of settings are still groups.

    Raises:
        ConfigError: naming the key.
    """
    for key, default in _plain(name).items():
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
    folder = files("conf")
    loaded: Any = OmegaConf.to_container(OmegaConf.create((folder / f"{name}.yaml").read_text("utf-8")), resolve=False)
    simulation: Any = OmegaConf.to_container(
        OmegaConf.create((folder / "simulation" / "ray.yaml").read_text("utf-8")), resolve=False
    )
    return {key: value for key, value in {**loaded, "simulation": simulation}.items() if key not in OPTIONAL}
