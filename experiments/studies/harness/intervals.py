"""Differences seed by seed, and how far their mean may be off."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.stats import t as student

CONFIDENCE = 0.95


def interval(differences: Sequence[float]) -> tuple[float, float | None]:
    """Their mean, and half the width of Student's interval of it; None for one alone."""
    count = len(differences)
    if count < 2:
        return fmean(differences), None
    reach = float(student.ppf(0.5 + CONFIDENCE / 2, count - 1)) * stdev(differences) / math.sqrt(count)
    return fmean(differences), reach
