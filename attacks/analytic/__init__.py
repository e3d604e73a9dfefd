"""Attacks that solve equations."""

from attacks.analytic.april import April
from attacks.analytic.patch_gradient import PatchGradient

__all__ = ["April", "PatchGradient"]
