"""`fedsim.load_config`: the settings of a command, without running it."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.utils import setup_globals
from omegaconf import DictConfig, open_dict
from omegaconf.errors import UnsupportedValueType

from experiments.cli.call import resolved
from experiments.cli.errors import ConfigFault, one_line
from experiments.cli.repeats import refuse_repeats
from fedsim.errors import ConfigError, nearest
from fedsim.settings.options import options

COMMANDS = {"run": "config", "audit": "audit", "measure": "measure", "matrix": "matrix", "prior": "prior"}
"""The file of `conf` behind each command."""

VALUES = "a number, a text, or a list or dictionary of these: what a settings file can hold"
WRITTEN = {
    "model": "the name of an option, or settings with a name that timm knows or a plug-in registers; "
    "fedsim.observe and fedsim.audit take any nn.Module",
    "data": "the name of an option, or settings whose _target_ is a source of images; "
    "fedsim.audit takes any torch data set",
}
"""What is expected where Python has an object that no settings file can hold."""


def load_config(command: str, *overrides: str, **settings: Any) -> dict[str, Any]:
    """All settings of a command, as it would see them: those of `conf`, with these changes.

    Args:
        command: `run`, `audit`, `measure`, `matrix` or `prior`.
        overrides: as on the command line: `"model=vit_small"`, `"client.optimizer.lr=0.01"`.
        settings: values by name, of any Python type; options by their names (`strategy="fedavg"`,
            `defense=["fixed_pe"]`), with settings as `{"mjp": {"ratio": 0.3}}`, nested values as dictionaries:
            `client={"batch_size": 4}`.

    Raises:
        ConfigError: an unknown command, option or setting.

    >>> import fedsim
    >>> fedsim.load_config("audit", "model=vit_tiny", audit={"num_images": 3})["audit"]["num_images"]
    3
    """
    if command not in COMMANDS:
        raise ConfigError("command", command, f"one of {', '.join(COMMANDS)}.{nearest(str(command), COMMANDS)}")
    name = COMMANDS[command]
    chosen = {key: pairs for key, value in settings.items() if (pairs := _options(key, value)) is not None}
    overrides = (*overrides, *(f"{key}={_named(settings[key], pairs)}" for key, pairs in chosen.items()))
    try:
        with initialize_config_module("conf", version_base=None):
            setup_globals()  # the time in `run_dir`, which Hydra's own entry points register
            composed = compose(name, list(overrides))
            refuse_repeats(overrides)
    except (*ConfigFault, ValueError, TypeError) as error:
        raise _refused(one_line(error, name, overrides)) from error
    for key in (key for key in settings if key not in chosen):
        _put(composed, key, settings[key], key)
    for key, pairs in chosen.items():
        for option, changes in pairs:
            if changes:  # some groups hold options by name, others the settings of the one
                inside = option in composed[key]
                group, at, full = (composed[key], option, f"{key}.{option}") if inside else (composed, key, key)
                _put(group, at, changes, full)
    found = resolved(composed)
    found.pop("hydra", None)
    return found


def _options(key: str, value: Any) -> list[tuple[str, Mapping[str, Any]]] | None:
    """The options that a group takes by name, with the settings that are changed; None for any other value."""
    listed = isinstance(value, list | tuple)
    if not files("conf").joinpath(key).is_dir():
        return None
    pairs: list[tuple[Any, Any]] = []
    for one in value if listed else [value]:
        pairs += one.items() if isinstance(one, Mapping) else [(one, {})]
    if not all(isinstance(name, str) and isinstance(changes, Mapping) for name, changes in pairs):
        return None
    if isinstance(value, Mapping) and not (pairs and {name for name, _ in pairs} <= set(options(key))):
        return None
    return pairs


def _named(value: Any, pairs: list[tuple[str, Mapping[str, Any]]]) -> str:
    """As an override has them."""
    names = [name for name, _ in pairs]
    single = len(names) == 1 and not isinstance(value, list | tuple)
    return names[0] if single else f"[{','.join(names)}]"


def _put(config: DictConfig, key: str, value: Any, full: str) -> None:
    if key not in config:
        raise ConfigError(full, value, fault=f"there is no such setting.{nearest(key, map(str, config))}")
    old = config[key]
    if isinstance(value, Mapping) and isinstance(old, DictConfig) and len(old) and "_target_" not in value:
        for inner, one in value.items():
            _put(old, str(inner), one, f"{full}.{inner}")
        return
    with open_dict(config):
        try:
            config[key] = value
        except UnsupportedValueType as error:
            raise ConfigError(full, type(value).__name__, WRITTEN.get(full, VALUES)) from error


def _refused(line: str) -> ConfigError:
    """Hydra's complaint, one line already, as a refusal of fedsim's own."""
    key, _, rest = line.partition("=")
    value, _, fault = rest.partition(": ")
    if not fault:
        key, _, fault = line.partition(": ")
        value = ""
    return ConfigError(key, value, fault=fault) if fault else ConfigError("overrides", "", fault=line)
