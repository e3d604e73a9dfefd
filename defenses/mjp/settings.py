"""What a user may set, checked where it is given: anything else ends in one line that names the key."""

import math
from collections.abc import Sequence

from fedsim.errors import ConfigError


def share(key: str, value: object) -> float:
    """From 0 to 1."""
    return _number(key, value, 1.0, "0 to 1")


def scale(key: str, value: object) -> float:
    """0 or more."""
    return _number(key, value, math.inf, "0 or more")


def whole(key: str, value: object, low: int) -> int:
    """A whole number, `low` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"defense.mjp.{key}", value, f"a whole number, {low} or more")
    return value


def option(key: str, value: object, options: Sequence[str]) -> str:
    """One of the options."""
    if not isinstance(value, str) or value not in options:
        raise ConfigError(f"defense.mjp.{key}", value, f"one of {', '.join(options)}")
    return value


def _number(key: str, value: object, high: float, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= high or value == math.inf:
        raise ConfigError(f"defense.mjp.{key}", value, expected)
    return float(value)
