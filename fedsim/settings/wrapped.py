"""Strategies that wrap others, as Flower's do for differential privacy on the server."""

from collections.abc import Iterator, Mapping
from typing import Any


def layers(strategy: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The key and the settings of a strategy and of those that it wraps, from the outermost inwards.

    Flower's own wrappers call what they wrap `strategy`; the innermost samples the clients of a round.
    """
    key: str = "strategy"
    layer: Any = strategy
    while isinstance(layer, Mapping):
        yield key, layer
        key, layer = f"{key}.strategy", layer.get("strategy")
