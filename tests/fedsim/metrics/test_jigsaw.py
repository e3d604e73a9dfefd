import statistics

import numpy as np
import pytest
import torch

from fedsim.metrics.jigsaw import Spread, consistent, difference_norm


def test_difference_norm_against_numpy(rng):
    a, b = torch.randn(5, 7, generator=rng), torch.randn(5, 7, generator=rng)
    expected = [
        np.sqrt(sum((x - y) ** 2 for x, y in zip(p, q, strict=True)))
        for p, q in zip(a.tolist(), b.tolist(), strict=True)
    ]
    np.testing.assert_allclose(difference_norm(a, b).numpy(), expected, rtol=1e-6)
    assert difference_norm(a, a).tolist() == [0.0] * 5


def test_consistency_asks_for_the_same_class_not_the_right_one():
    clean = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    moved = torch.tensor([[0.4, 0.6], [0.1, 0.9], [5.0, 6.0]])
    assert consistent(clean, moved).tolist() == [True, False, True]


def test_spread():
    values = [0.3, 0.9, 0.4, 0.1]
    found = Spread.of(values)
    assert found.mean == pytest.approx(statistics.mean(values), rel=1e-12)
    assert found.std == pytest.approx(statistics.stdev(values), rel=1e-12)
    assert found.count == 4
    assert Spread.of([0.5]) == Spread(0.5, None, 1)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])
