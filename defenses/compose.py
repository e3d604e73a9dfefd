"""From the configured defenses to a chain."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from defenses.base import Defense, DefenseChain
from fedsim.errors import ConfigError
from fedsim.models import ModelWrapper
from fedsim.settings.components import build_component
from fedsim.settings.plugins import load_plugins


def build_chain(config: dict[str, Any] | None) -> DefenseChain:
    """Instantiate `cfg.defense`, in its order.

    Raises:
        ConfigError: a `_target_` is no Defense, or has a setting called `name`.
    """
    defenses: dict[str, Defense] = {}
    for name, settings in (config or {}).items():
        if isinstance(settings, Mapping) and "name" in settings:
            expected = "another word for this setting: observations keep the defense's own name under this one"
            raise ConfigError(f"defense.{name}.name", settings["name"], expected)
        defenses[name] = build_component(f"defense.{name}", settings, Defense)
    return DefenseChain(defenses)


DIGEST = "digest"
"""Stands for the settings of a defense that came as an object, where somebody knows it."""


def load_wrappers(recorded: Iterable[dict[str, Any]]) -> tuple[ModelWrapper, ...]:
    """Rebuild the defenses named in an observation on disk.

    A name from disk imports nothing and finds only subclasses of Defense that are loaded already, as `module.Class`:
    those of this package, of whatever the caller has imported, and of the modules that installed plug-ins declare.

    Raises:
        ConfigError: the record names something else, or a plug-in cannot be imported.
    """
    wrappers = []
    for described in recorded:
        if DIGEST in described:  # its settings are on no record: what was noted of its effects counts
            continue
        target = str(described.get("_target_"))
        settings = {key: value for key, value in described.items() if key not in ("name", "_target_")}
        cls = _loaded(target)
        if cls is None:
            load_plugins()
            cls = _loaded(target)
        if cls is None or any(str(key).startswith("_") for key in settings):
            expected = "a recorded defense must be a loaded subclass of Defense; choose your own with defense=[NAME]"
            raise ConfigError("observation", described.get("_target_"), fault=expected)
        wrappers.append(cls(**settings))
    return tuple(wrappers)


def _loaded(target: str) -> type[Defense] | None:
    module, _, name = target.rpartition(".")
    # Not getattr: a module may import on demand what it is asked for.
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return found if inspect.isclass(found) and issubclass(found, Defense) and found is not Defense else None
