"""From the configured defenses to a chain."""

from collections.abc import Iterable
from typing import Any

from defenses import perturbation as perturbation  # loaded, so that records may name them
from defenses import position as position
from defenses.base import Defense, DefenseChain
from fedsim.components import build_component
from fedsim.errors import ConfigError
from fedsim.models import ModelWrapper


def build_chain(config: dict[str, Any] | None) -> DefenseChain:
    """Instantiate `cfg.defense`, in its order.

    Raises:
        ConfigError: a `_target_` is no Defense.
    """
    defenses: dict[str, Defense] = {}
    for name, settings in (config or {}).items():
        defenses[name] = build_component(f"defense.{name}", settings, Defense)
    return DefenseChain(defenses)


def load_wrappers(recorded: Iterable[dict[str, Any]]) -> tuple[ModelWrapper, ...]:
    """Rebuild the defenses named in an observation on disk.

    Nothing is imported for it: a name from disk finds only subclasses of Defense that are loaded already, those of
    this package and of whatever the caller has imported.

    Raises:
        ConfigError: the record names something else.
    """
    known = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in _subclasses(Defense)}
    known |= {f"defenses.{cls.__qualname__}": cls for cls in known.values() if cls.__module__.startswith("defenses.")}
    wrappers = []
    for described in recorded:
        settings = {key: value for key, value in described.items() if key not in ("name", "_target_")}
        cls = known.get(str(described.get("_target_")))
        if cls is None or any(str(key).startswith("_") for key in settings):
            raise ConfigError(
                "observation", described.get("_target_"), "a recorded defense must be a loaded subclass of Defense"
            )
        wrappers.append(cls(**settings))
    return tuple(wrappers)


def _subclasses(cls: type[Defense]) -> set[type[Defense]]:
    direct = set(cls.__subclasses__())
    return direct.union(*(_subclasses(sub) for sub in direct)) if direct else direct
