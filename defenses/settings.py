"""Checks of a defense's settings, which come from a configuration file or a command line in any type."""

from collections.abc import Callable, Iterable

from fedsim.errors import ConfigError, nearest


def number(key: str, value: object, expected: str, valid: Callable[[float], bool]) -> float:
    """A number that is valid; infinity is one, nan only where `valid` says so.

    Raises:
        ConfigError: another type (true and false too), or not valid.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not valid(value):
        raise ConfigError(key, value, expected)
    return float(value)


def whole(key: str, value: object, expected: str, valid: Callable[[int], bool]) -> int:
    """A whole number that is valid.

    Raises:
        ConfigError: another type (2.0 and true too), or not valid.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not valid(value):
        raise ConfigError(key, value, expected)
    return value


def flag(key: str, value: object) -> bool:
    """Raises ConfigError for anything but true and false."""
    if not isinstance(value, bool):
        raise ConfigError(key, value, "true or false")
    return value


def choice(key: str, value: object, options: Iterable[str]) -> str:
    """Raises ConfigError for anything but one of the options, naming the nearest."""
    options = tuple(options)
    if not isinstance(value, str) or value not in options:
        hint = nearest(value, options) if isinstance(value, str) else ""
        raise ConfigError(key, value, f"one of {', '.join(options)}.{hint}" if hint else f"one of {', '.join(options)}")
    return value
