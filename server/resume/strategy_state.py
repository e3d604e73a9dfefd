"""What a strategy has become beyond its settings, of Flower's own strategies and of any other."""

from collections.abc import Iterator
from functools import partial
from logging import getLogger
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedsim.storage.nested import flatten

FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, partial, type)

logger = getLogger(__name__)


def strategy_state(strategy: Strategy) -> dict[str, Any]:
    """The state of a strategy and of those that it wraps, by their place and class.

    A strategy with `state_dict` and `load_state_dict` is asked. Of any other its attributes are taken: numbers, texts,
    arrays, records, and containers of them; functions and classes come back with the settings.

    Raises:
        TypeError: a strategy holds something else, which nobody could bring back.
    """
    return {name: _state_of(part) for name, part in _parts(strategy)}


def restore_strategy(strategy: Strategy, state: dict[str, Any]) -> None:
    """Give a strategy with the same settings the state of another.

    Raises:
        ValueError: the state is of other strategies.
    """
    parts = dict(_parts(strategy))
    if list(parts) != list(state):
        raise ValueError(f"the state is of {', '.join(state)}, not of {', '.join(parts)}")
    for name, part in parts.items():
        if hasattr(part, "load_state_dict"):
            part.load_state_dict(state[name])
        else:
            vars(part).update(state[name])


def strategy_layers(strategy: Strategy) -> Iterator[Strategy]:
    """From the outermost inwards; Flower's own wrappers call what they wrap `strategy`."""
    part: Any = strategy
    while isinstance(part, Strategy):
        yield part
        part = getattr(part, "strategy", None)


def _parts(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    for depth, part in enumerate(strategy_layers(strategy)):
        yield f"{depth} {type(part).__name__}", part


def _state_of(strategy: Strategy) -> dict[str, Any]:
    if hasattr(strategy, "state_dict"):
        state: dict[str, Any] = strategy.state_dict()
        return state
    state = {}
    for name, value in vars(strategy).items():
        if isinstance(value, FUNCTIONS) or (name == "strategy" and isinstance(value, Strategy)):
            continue
        try:
            flatten(value)
        except TypeError as error:
            advice = "with state_dict and load_state_dict a strategy says itself what it has become"
            raise TypeError(f"{type(strategy).__name__}.{name}: {error}; {advice}") from None
        state[name] = value
    return state
