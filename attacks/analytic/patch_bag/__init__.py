"""Patches to which no position is added: as a set, and their order where the attention tells it."""

from attacks.analytic.patch_bag.attack import PatchBag

__all__ = ["PatchBag"]
