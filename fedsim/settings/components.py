"""From `_target_` settings to an object; what does not fit is refused by the full name of the setting."""

import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from numbers import Number
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from fedsim.errors import ConfigError, nearest

Component = TypeVar("Component")
TARGET = "_target_"
PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    NoneType: "null",
}
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
FEW = 12
"""Settings, up to which all are listed where none is near a misspelt one."""


def build_component(key: str, settings: Mapping[str, Any], kind: type[Component]) -> Component:
    """Instantiate settings, nested ones included.

    Args:
        key: the full name of the settings, `attack.dlg`.

    Raises:
        ConfigError: no such class, a setting that it does not have or lacks, of another type, or that it refuses.
    """
    check_settings(key, settings)
    try:
        component = instantiate(settings, _convert_="all")
    except InstantiationException as error:
        raise _named(key, error) from error
    if not isinstance(component, kind):
        wanted = f"a subclass of {kind.__module__}.{kind.__qualname__}"
        raise ConfigError(f"{key}.{TARGET}", settings.get(TARGET), wanted)
    return component


def check_settings(key: str, settings: Mapping[str, Any]) -> None:
    """Names and types of settings against the signature of their class, and so on for nested ones."""
    if not isinstance(settings, Mapping):
        raise ConfigError(key, settings, f"settings, with the class to build as {TARGET}")
    if TARGET not in settings:
        raise ConfigError(f"{key}.{TARGET}", None, "the class to build")
    try:
        target = get_object(str(settings[TARGET]))
        inspect.signature(target)
    except (ImportError, ValueError, TypeError) as error:
        why = _absent(str(settings[TARGET])) or f" ({error})"
        raise ConfigError(f"{key}.{TARGET}", settings[TARGET], f"a class that can be imported{why}") from error
    check_arguments(key, settings, target)


def _absent(target: str) -> str:
    """What to say of a module that Python does not find, or of a name that a module lacks; nothing otherwise."""
    top = target.partition(".")[0]
    if top.isidentifier() and top not in sys.modules and find_spec(top) is None:
        return f": Python finds no module {top}, and its file must be in this folder or on PYTHONPATH"
    module, _, name = target.rpartition(".")
    found = sys.modules.get(module)  # the import that failed has loaded it, if there is one
    if found is None or hasattr(found, name):
        return ""
    return f": {module} has no {name}.{nearest(name, [one for one in vars(found) if not one.startswith('_')])}"


def check_arguments(key: str, settings: Mapping[str, Any], target: Any) -> None:
    """Names and types of settings against the signature of `target`; what begins with an underscore is no argument.

    Raises:
        ConfigError: naming the setting.
    """
    parameters, hints = inspect.signature(target).parameters, _hints(target)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name, value in settings.items():
        if str(name).startswith("_"):
            continue
        if name not in parameters and not open_ended:
            known = [one for one, parameter in parameters.items() if parameter.kind in NAMED]
            listed = f" There are {', '.join(known)}." if 0 < len(known) <= FEW else ""
            hint = nearest(str(name), known) or listed
            raise ConfigError(f"{key}.{name}", value, fault=f"there is no such setting.{hint}")
        _check_nested(f"{key}.{name}", value)
        if name in hints and not fits(value, hints[name]):
            raise ConfigError(f"{key}.{name}", value, expected(hints[name]))
    for name, parameter in parameters.items():
        if name not in settings and parameter.default is parameter.empty and parameter.kind in NAMED:
            raise ConfigError(f"{key}.{name}", "", fault="missing; it has no default")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from YAML can be meant for this annotation; True wherever that cannot be told."""
    options = _options(hint)
    if any(option is Any or option is object or isinstance(option, str | TypeVar) for option in options):
        return True
    if isinstance(value, Mapping):
        return TARGET in value or any(option not in PLAIN for option in options)
    if isinstance(value, bool | int | float | str | None):
        if any(_is_plain(value, option) for option in options):
            return True
        # Words may stand for anything but numbers and objects of a class.
        classes = [o for o in options if inspect.isclass(o) and o not in PLAIN]
        return len(classes) + sum(o in PLAIN for o in options) < len(options)
    return any(option not in PLAIN for option in options)


def expected(hint: Any) -> str:
    """An annotation as a reader of settings would put it."""
    words = [PLAIN.get(option) or _class_words(option) for option in _options(hint)]
    if PLAIN[float] in words and PLAIN[int] in words:
        words.remove(PLAIN[int])
    return " or ".join(dict.fromkeys(words))


def _class_words(option: Any) -> str:
    return f"a {option.__name__} by its {TARGET}" if inspect.isclass(option) else "what its help says"


def _is_plain(value: Any, option: Any) -> bool:
    if option is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return option in PLAIN and isinstance(value, option)


def _options(hint: Any) -> tuple[Any, ...]:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    meant: dict[Any, Any] = {Number: float}  # torchvision's
    options = tuple(meant.get(option, option) if inspect.isclass(option) else option for option in options)
    return tuple(str if option == os.PathLike[str] else option for option in options)  # YAML has words for paths


def _hints(target: Any) -> dict[str, Any]:
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError):  # annotations that only a type checker can read say nothing here
        return {}


def _check_nested(key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        if TARGET in value:
            check_settings(key, value)
        else:
            for name, inner in value.items():
                _check_nested(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_nested(f"{key}.{index}", inner)


def _named(key: str, error: InstantiationException) -> ConfigError:
    """Components name their own settings by a word and the setting, `prior.weight`; users need the whole path."""
    within = re.search(r"full_key: (\S+)", str(error))
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, ConfigError):
        cause = cause.__cause__
    path = f"{key}.{within.group(1)}" if within else key
    if not isinstance(cause, ConfigError):
        if lacking := re.search(r"abstract class (\w+) .*abstract methods? (.+)", str(cause).replace("'", "")):
            return ConfigError(f"{path}.{TARGET}", lacking[1], f"a class that defines {lacking[2]}")
        return ConfigError(path, " ".join(str(cause).split())[:200], "settings that fit")
    group = key.split(".", 1)[0]
    if cause.key.startswith((f"{group}.", "client.")) or cause.key == group:
        return cause
    if within:
        return cause.under(f"{path}.{cause.key.split('.', 1)[-1]}")
    return cause.under(f"{key}.{cause.key}")


def layers(strategy: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The key and the settings of a strategy and of those that it wraps, as for differential privacy on the server.

    From the outermost inwards. Flower's own wrappers call what they wrap `strategy`; the innermost samples a round's
    clients.
    """
    key: str = "strategy"
    layer: Any = strategy
    while isinstance(layer, Mapping):
        yield key, layer
        key, layer = f"{key}.strategy", layer.get("strategy")
