"""Shapes are checked where they are stated: jaxtyping would wrap every function of a module, at 30 µs a call."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import beartype
import jaxtyping
from beartype.roar import BeartypeCallHintViolation


def check_stated_alone() -> None:
    """Functions and dataclasses whose annotations name no shape are left as they are; mypy has checked their types."""
    wrap = jaxtyping.jaxtyped

    def jaxtyped(subject: Any, typechecker: Any) -> Any:
        if not states_shapes(subject):
            return subject
        simple = typechecker is beartype.beartype and _is_simple(subject)
        return _checked_once(subject) if simple else wrap(subject, typechecker=typechecker)

    jaxtyping.jaxtyped = lambda *, typechecker: lambda subject: jaxtyped(subject, typechecker)


def _checked_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments, then the result, in one table of sizes: jaxtyping would check the arguments again with the result."""
    checked, sizes = beartype.beartype(function), jaxtyping.jaxtyped("context")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            with sizes:
                return checked(*args, **kwargs)
        except BeartypeCallHintViolation as violation:
            raise jaxtyping.TypeCheckError(str(violation)) from violation

    return call


def _is_simple(subject: Any) -> bool:
    """A function that returns once, whose annotations are there already and name no argument in a shape."""
    if not inspect.isfunction(subject) or inspect.isgeneratorfunction(subject) or inspect.iscoroutinefunction(subject):
        return False
    annotations = subject.__annotations__.values()
    return not any(isinstance(one, str) or "{" in str(one) or "ForwardRef" in str(one) for one in annotations)


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
