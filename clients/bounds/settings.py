"""Checks of a bound's lists of settings, which come from a configuration file or a command line in any type."""

from collections.abc import Callable

from defenses.settings import number, whole
from fedsim.errors import ConfigError


def numbers(key: str, values: object, expected: str, valid: Callable[[float], bool]) -> tuple[float, ...]:
    """A list of valid numbers, perhaps empty.

    Raises:
        ConfigError: no list, or one of another type, or not valid.
    """
    return tuple(number(key, value, expected, valid) for value in _listed(key, values, expected))


def wholes(key: str, values: object, expected: str, valid: Callable[[int], bool]) -> tuple[int, ...]:
    """As `numbers`, of whole ones."""
    return tuple(whole(key, value, expected, valid) for value in _listed(key, values, expected))


def _listed(key: str, values: object, expected: str) -> "list[object] | tuple[object, ...]":
    if not isinstance(values, list | tuple):
        raise ConfigError(key, values, f"a list of {expected}")
    return values
