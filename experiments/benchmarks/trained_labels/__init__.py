"""Label counts from updates of trained models."""

SIZES, LOCAL = (8, 32, 64), (5, 20)
"""Images in an update, and local steps, if not asked for otherwise."""
