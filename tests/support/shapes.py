"""Shapes are checked where they are stated: jaxtyping would wrap every function of a module, at 30 µs a call."""

import dataclasses
import inspect
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

CHECKED = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def check_stated_alone() -> None:
    """Functions and dataclasses whose annotations name no shape are left as they are; mypy has checked their types."""
    wrap = jaxtyping.jaxtyped

    def jaxtyped(subject: Any, typechecker: Any) -> Any:
        if not states_shapes(subject):
            return subject
        if not inspect.isfunction(subject) or inspect.isgeneratorfunction(subject):
            return wrap(subject, typechecker=typechecker)
        subject.__annotations__ = {name: _known(one, subject) for name, one in subject.__annotations__.items()}
        return wrap(CHECKED(subject), typechecker=None)  # with both jaxtyping checks arguments twice

    jaxtyping.jaxtyped = lambda *, typechecker: lambda subject: jaxtyped(subject, typechecker)


def _known(annotation: Any, function: Any) -> Any:
    """Anything where a name is not known as the function is made."""

    def one() -> None: ...

    one.__annotations__ = {"value": annotation}
    try:
        return get_type_hints(one, function.__globals__, include_extras=True)["value"]
    except (NameError, ValueError):
        return Any


def states_shapes(subject: Any) -> bool:
    """Whether an argument, a result or a field is annotated with a shape."""
    if not inspect.isclass(subject):
        return any(_is_shape(one) for one in getattr(subject, "__annotations__", {}).values())
    return dataclasses.is_dataclass(subject) and any(_is_shape(field.type) for field in dataclasses.fields(subject))


def _is_shape(annotation: Any) -> bool:
    if isinstance(annotation, str):  # a name that the module does not have yet: it may be one
        return True
    inner = annotation if isinstance(annotation, list) else get_args(annotation)
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_is_shape, inner))
