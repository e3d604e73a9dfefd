"""Settings as typed objects: a dataclass says each field's type, its range and what would be right, once.

A field's type is a plain one, a `Literal` of words, another such dataclass, or `Annotated[type, rule]`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fedsim.errors import ConfigError, nearest
from fedsim.settings.components import expected, fits

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")
Check = Callable[[str, Any], None]


@dataclass(frozen=True)
class Rule:
    """What a value must be, and the words that say so; the nearest of `options` is offered for a typo."""

    words: str
    valid: Callable[[Any], bool]
    options: tuple[str, ...] = ()

    def __call__(self, key: str, value: Any) -> None:
        """Raises ConfigError for a value that is not valid."""
        if not self.valid(value):
            raise ConfigError(key, value, f"{self.words}{nearest(str(value), self.options)}")


def is_whole(value: Any, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, least: float, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def at_least(least: int) -> Rule:
    return Rule(f"a whole number of at least {least}", lambda value: is_whole(value, least))


def number(least: float, most: float = math.inf, words: str | None = None) -> Rule:
    upper = "" if most == math.inf else f" and at most {most:g}"
    return Rule(words or f"a number of at least {least:g}{upper}", lambda value: is_number(value, least, most))


def one_of(*options: str) -> Rule:
    return Rule(f"one of {', '.join(options)}.", lambda value: value in options, options)


def list_of(valid: Callable[[Any], bool], words: str) -> Rule:
    return Rule(words, lambda values: isinstance(values, list) and all(valid(value) for value in values))


def auto_or(rule: Rule) -> Rule:
    """`auto`, or what the rule says; its words alone are told."""
    return Rule(rule.words, lambda value: value == "auto" or rule.valid(value))


def group(key: str, value: Any) -> None:
    """Raises ConfigError where this is no group of settings."""
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, f"a group of settings: {key}.NAME=VALUE sets one of them")


USUAL: Mapping[Any, Callable[..., Check]] = {Literal: one_of, dict: lambda *_: group}
"""Rules that a type has by itself."""


def options(key: str, value: Any) -> None:
    """Raises ConfigError where these are not options of a group that takes several, each with settings of its own."""
    group(key, value)
    if isinstance(target := value.get("_target_"), str):
        raise ConfigError(key, target, fault="in its YAML a name around its settings: 'NAME:', the rest indented")
    for name, settings in value.items():
        if not isinstance(settings, Mapping):
            wanted = f"settings: {key}.{name}.NAME=VALUE sets one of them, {key}=[{name}] takes them as they are"
            raise ConfigError(f"{key}.{name}", settings, wanted)


def parse(kind: type[Settings], given: Any, key: str = "") -> Settings:
    """Settings from a plain mapping, as YAML holds them; parsed ones come back as they are.

    Every field is needed that has no default, and no other.

    Args:
        key: the full name of the group, `client`; empty for a whole configuration.

    Raises:
        ConfigError: naming the key, the value and what would be right.
    """
    if isinstance(given, kind):
        return given
    group(key, given)
    prefix, known, hints = f"{key}." if key else "", _fields(kind), _hints(kind)
    for name, value in given.items():
        if name not in known:
            hint = nearest(str(name), known) or " --cfg job shows them all."
            raise ConfigError(f"{prefix}{name}", value, fault=f"there is no such setting.{hint}")
    values = {}
    for name, field in known.items():
        if name in given:
            values[name] = _value(f"{prefix}{name}", given[name], hints[name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{prefix}{name}", "", fault="missing; leave it as it is instead of taking it away")
    parsed = kind(**values)
    check: Callable[[], None] = getattr(parsed, "check", lambda: None)
    check()  # of what depends on several fields
    return parsed


def plain(settings: "DataclassInstance") -> dict[str, Any]:
    """The mapping that `parse` takes, as a file or a message holds it."""
    values = {name: getattr(settings, name) for name in _fields(type(settings))}
    return {key: plain(one) if is_dataclass(one) and not isinstance(one, type) else one for key, one in values.items()}


def _value(key: str, value: Any, hint: Any) -> Any:
    hint, *checks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if is_dataclass(hint) and isinstance(hint, type):
        return parse(hint, value, key)
    if value is None and NoneType in get_args(hint):
        return None
    if not checks and get_origin(hint) in USUAL:
        checks = [USUAL[get_origin(hint)](*get_args(hint))]
    for check in checks:
        check(key, value)
    if not checks and not fits(value, hint):
        raise ConfigError(key, value, expected(hint))
    return value


@cache
def _fields(kind: type["DataclassInstance"]) -> Mapping[str, Field[Any]]:
    return {field.name: field for field in fields(kind) if field.init}


@cache
def _hints(kind: type["DataclassInstance"]) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)
