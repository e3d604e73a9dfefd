from itertools import permutations

import pytest
import torch

from attacks.learned.loss import matched_mse


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_it_is_the_least_error_over_all_orders(rng, batch):
    found, truth = torch.rand(2, 5, batch, 3, 4, 4, generator=rng, dtype=torch.float64)
    every = [(found - truth[:, list(order)]).square().flatten(1).mean(dim=1) for order in permutations(range(batch))]
    torch.testing.assert_close(matched_mse(found, truth), torch.stack(every).amin(dim=0))


def test_no_order_of_either_side_changes_it(rng):
    found, truth = torch.rand(2, 3, 4, 1, 5, 5, generator=rng, dtype=torch.float64)
    before = matched_mse(found, truth)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(matched_mse(found[:, order], truth), before)
    torch.testing.assert_close(matched_mse(found, truth[:, order]), before)
    assert not matched_mse(truth[:, order], truth).any()


def test_its_derivative_is_that_of_the_best_order(rng):
    found, truth = torch.rand(2, 2, 2, 1, 3, 3, generator=rng, dtype=torch.float64)
    found.requires_grad_()
    assert torch.autograd.gradcheck(lambda pictures: matched_mse(pictures, truth), found)
