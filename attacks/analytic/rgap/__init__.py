"""R-GAP: the image by recursion from the last layer to the first (Zhu & Blaschko 2021)."""

from attacks.analytic.rgap.attack import RGap

__all__ = ["RGap"]
