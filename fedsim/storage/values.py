"""Values out of JSON that anybody may have written: of the wanted kind, or None."""

import math
from collections.abc import Mapping
from typing import Any


def number(value: object) -> float | None:
    """A finite number; JSON as Python writes it may hold NaN, Infinity and integers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def numbers(values: object) -> dict[str, float]:
    """The finite ones of a mapping, by name."""
    named = values.items() if isinstance(values, Mapping) else ()
    return {str(name): found for name, value in named if (found := number(value)) is not None}


def share(value: object) -> float | None:
    found = number(value)
    return found if found is not None and 0.0 <= found <= 1.0 else None


def whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def text(value: object) -> str | None:
    return None if value is None else str(value)


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
