"""What a user may set, checked where it is given: anything else ends in one line that names the key."""

import math
from collections.abc import Sequence

from defenses.settings import choice, number
from defenses.settings import whole as whole_number


def share(key: str, value: object) -> float:
    """A share, from 0 to 1."""
    return number(f"defense.mjp.{key}", value, "0 to 1", lambda v: 0.0 <= v <= 1.0)


def scale(key: str, value: object) -> float:
    """0 or more."""
    return number(f"defense.mjp.{key}", value, "0 or more", lambda v: 0.0 <= v < math.inf)


def whole(key: str, value: object, low: int) -> int:
    """A whole number, `low` or more."""
    return whole_number(f"defense.mjp.{key}", value, f"a whole number, {low} or more", lambda v: v >= low)


def option(key: str, value: object, options: Sequence[str]) -> str:
    """One of the options."""
    return choice(f"defense.mjp.{key}", value, options)
