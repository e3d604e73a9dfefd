"""Attacks that solve equations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.analytic.april import April as April
    from attacks.analytic.mjp.attack import MJPAdaptive as MJPAdaptive
    from attacks.analytic.patch_gradient import PatchGradient as PatchGradient
    from attacks.analytic.row_space.attack import RowSpace as RowSpace

_HOMES = {
    "April": "april",
    "MJPAdaptive": "mjp.attack",
    "PatchGradient": "patch_gradient",
    "RowSpace": "row_space.attack",
}
__all__ = ["April", "MJPAdaptive", "PatchGradient", "RowSpace"]


def __getattr__(name: str) -> Any:
    """Looked up when it is used: its mathematics alone costs no attack's import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
