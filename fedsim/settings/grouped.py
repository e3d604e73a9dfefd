"""Settings in groups: typed objects in code that stand side by side in YAML, and as keyword arguments."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_args, get_type_hints

Init = TypeVar("Init", bound=Callable[..., None])


class SettingsGroup:
    """Settings that belong together and are checked together; a constructor that is `grouped` takes it as one."""


def grouped(init: Init) -> Init:
    """An `__init__` whose parameters of a subclass of `SettingsGroup` may be given by that group's settings instead.

    With `search: Descent`, of which `steps` is a setting, `Attack(search=Descent(steps=5))` and `Attack(steps=5)` are
    the same; its signature names the settings, so that those of a configuration are checked against them.

    >>> class Limits(SettingsGroup):
    ...     def __init__(self, frames: int = 10) -> None:
    ...         self.frames = frames
    >>> class Walk:
    ...     @grouped
    ...     def __init__(self, limits: Limits | None = None) -> None:
    ...         self.limits = limits or Limits()
    >>> Walk(frames=3).limits.frames, Walk(Limits(4)).limits.frames, inspect.signature(Walk)
    (3, 4, <Signature (*, frames: int = 10) -> None>)
    """
    signature, hints = inspect.signature(init), get_type_hints(init)
    groups = {name: group for name in signature.parameters if (group := _group(hints.get(name))) is not None}
    settings = {name: inspect.signature(group).parameters for name, group in groups.items()}
    names = list(signature.parameters)

    @wraps(init)
    def construct(self: Any, *args: Any, **given: Any) -> None:
        for name, group in groups.items():
            own = {key: given.pop(key) for key in settings[name] if key in given}
            there = name in given or name in names[: len(args) + 1]
            if own and there:
                raise TypeError(f"{type(self).__name__}: {name} is given, and {next(iter(own))} besides")
            if own or (not there and signature.parameters[name].default is inspect.Parameter.empty):
                given[name] = group(**own)
        init(self, *args, **given)

    flat = [parameter for name, parameter in signature.parameters.items() if name not in groups]
    for own in settings.values():
        flat += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own.values()]
    construct.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    for group in groups.values():
        hints |= get_type_hints(group.__init__)
    construct.__annotations__ = {name: hint for name, hint in hints.items() if name not in groups}
    return construct  # type: ignore[return-value]


def _group(hint: Any) -> type[SettingsGroup] | None:
    options = get_args(hint) or (hint,)
    return next((one for one in options if inspect.isclass(one) and issubclass(one, SettingsGroup)), None)
