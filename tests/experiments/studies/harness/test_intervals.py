"""Student's interval against scipy's own test."""

import pytest
import torch
from scipy import stats

from experiments.studies.harness.intervals import interval


def test_the_interval_is_students(rng):
    values = torch.randn(5, generator=rng, dtype=torch.float64).tolist()
    mean, reach = interval(values)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (mean - reach, mean + reach) == pytest.approx((low, high))
    assert interval(values[:1]) == (values[0], None)
