"""Which classes were in the batch."""

from attacks.label.recover import RecoverLabels

__all__ = ["RecoverLabels"]
