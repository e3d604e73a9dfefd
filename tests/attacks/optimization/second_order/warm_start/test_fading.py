"""Steps with a prior that fades."""

from dataclasses import replace

import pytest
import torch

from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.stages import whole_model
from attacks.optimization.second_order.warm_start.fading import descend_with_fading


def whole(held, weight):
    return whole_model(held, replace(held, weights=held.weights.float()), 2)


def residual_of(shared, target, **settings):
    return Residual(shared, target, torch.ones_like(target), 0.0, **settings)


def test_it_ends_at_the_likely_one_of_two_images_that_explain_as_much():
    """x² = 4 from slightly below 0: by itself a search ends at -2, where the prior is unlikely."""
    target = torch.tensor([4.0], dtype=torch.float64)
    residual = residual_of(lambda x: (x.square(),), target)

    def whitened(x):
        return 2.0 * (x - 1.5)

    start, costs = torch.tensor([-0.1], dtype=torch.float64), []
    found, enough = descend_with_fading(residual, whitened, start, 40, whole, costs.append, 1e-10)
    assert enough
    assert float(found) == pytest.approx(2.0, abs=1e-4)
    alone, _ = descend_with_fading(residual, lambda x: 0.0 * x, start, 40, whole, costs.append, 1e-10)
    assert float(alone) == pytest.approx(-2.0, abs=1e-4)


def test_what_was_shared_decides_in_the_end_and_rows_of_its_own_are_kept():
    """One equation for two unknowns, a row besides for their difference, and a prior that is wrong."""
    target = torch.tensor([3.0], dtype=torch.float64)
    residual = residual_of(lambda x: (x.sum()[None],), target, before=lambda x: x[:1] - x[1:])
    start = torch.zeros(2, dtype=torch.float64)
    found, enough = descend_with_fading(
        residual, lambda x: 10.0 * (x + 5.0), start, 40, whole, lambda cost: None, 1e-12
    )
    assert enough
    assert found.tolist() == pytest.approx([1.5, 1.5], abs=0.05)


def test_it_says_where_it_did_not_get_there():
    target = torch.tensor([-1.0], dtype=torch.float64)
    residual = residual_of(lambda x: (x.square(),), target)
    costs = []
    found, enough = descend_with_fading(
        residual, lambda x: x, torch.ones(1, dtype=torch.float64), 30, whole, costs.append, 1e-10
    )
    assert not enough
    assert float(found) == pytest.approx(0.0, abs=0.1)
    assert costs[-1] == pytest.approx(1.0, abs=0.05)
