"""Attacks that are trained before: learned inversion (LTI), and the mean picture that it must beat."""

from attacks.learned.attack import LearnedInversion

__all__ = ["LearnedInversion"]
