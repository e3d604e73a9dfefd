"""Defenses as a caller in Python names them, as a chain and as their settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from defenses.base import Defense, DefenseChain
from defenses.compose import DIGEST, build_chain
from fedsim.errors import ConfigError
from fedsim.settings.local.augment import stage
from fedsim.settings.options import option

Named = str | Mapping[str, Any] | Defense
Settings = dict[str, dict[str, Any]]


def chain_of(defenses: Named | Sequence[Named], augment: Sequence[Any] = ()) -> tuple[DefenseChain, Settings]:
    """Several defenses in order, and the settings that are public of each, by its name.

    Args:
        augment: `client.augment`, whose hook stands before them in the chain and is none of the settings.
        defenses: names of `conf/defense`; `{"mjp": {"ratio": 0.3}}` with settings; objects of your own.

    Raises:
        ConfigError: an unknown name or setting, one defense twice, or what is no defense.
    """
    several = [defenses] if isinstance(defenses, str | Mapping | Defense) else list(defenses)
    chain: dict[str, Defense] = dict(build_chain(stage(list(augment))).defenses)
    settings: Settings = {}
    for one in several:
        for name, (defense, described) in _resolved(one).items():
            if name in chain:
                raise ConfigError("defense", name, "each defense once")
            chain[name], settings[name] = defense, described
    return DefenseChain(chain), settings


def _resolved(one: Named) -> dict[str, tuple[Defense, dict[str, Any]]]:
    if isinstance(one, Defense):
        kind = type(one)
        return {kind.__name__: (one, {"_target_": f"{kind.__module__}.{kind.__qualname__}", DIGEST: None})}
    if not isinstance(one, str | Mapping):
        expected = "names of conf/defense, {name: settings}, or objects of a subclass of defenses.Defense"
        raise ConfigError("defense", one, expected)
    changed: Mapping[str, Any] = {one: {}} if isinstance(one, str) else one
    described = {name: option("defense", name, changes, objects=True) for name, changes in changed.items()}
    return {name: (build_chain({name: own}).defenses[name], own) for name, own in described.items()}
