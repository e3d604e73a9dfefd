"""From the configured defenses to a chain."""

from collections.abc import Iterable
from typing import Any

from hydra.utils import get_class, instantiate

from defenses.base import Defense, DefenseChain
from fedsim.errors import ConfigError
from fedsim.models import ModelWrapper


def build_chain(config: dict[str, Any] | None) -> DefenseChain:
    """Instantiate `cfg.defense`, in its order.

    Raises:
        ConfigError: a `_target_` is no Defense.
    """
    defenses: dict[str, Defense] = {}
    for name, settings in (config or {}).items():
        defense = instantiate(settings, _convert_="all")
        if not isinstance(defense, Defense):
            raise ConfigError(f"defense.{name}._target_", settings.get("_target_"), "a subclass of defenses.Defense")
        defenses[name] = defense
    return DefenseChain(defenses)


def load_wrappers(recorded: Iterable[dict[str, Any]]) -> tuple[ModelWrapper, ...]:
    """Rebuild the defenses named in an observation on disk; only subclasses of Defense are ever called.

    Raises:
        ConfigError: the record names something else.
    """
    wrappers = []
    for described in recorded:
        settings = {key: value for key, value in described.items() if key != "name"}
        target = str(settings.get("_target_"))
        try:
            allowed = issubclass(get_class(target), Defense)
        except (ImportError, TypeError, ValueError):
            allowed = False
        if not allowed or any(isinstance(value, dict | list) for value in settings.values()):
            raise ConfigError("observation", target, "a recorded defense must be an installed subclass of Defense")
        wrappers.append(instantiate(settings, _convert_="all"))
    return tuple(wrappers)
