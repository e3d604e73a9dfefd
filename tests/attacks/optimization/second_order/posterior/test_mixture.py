"""Several modes against densities that are known, or summed over a grid."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from attacks.optimization.second_order.posterior.mean import PosteriorMean
from attacks.optimization.second_order.posterior.mixture import Modes, mixture, shares, unlikely
from attacks.optimization.second_order.residual.residual import Residual

NUMBERS, UNKNOWNS, ERROR = 9, 4, 0.3


def draws(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def test_of_a_linear_update_it_is_the_updates_own_probability_from_any_place(rng):
    A, y = draws(rng, NUMBERS, UNKNOWNS), draws(rng, NUMBERS)
    weights = torch.full((NUMBERS,), 1.0 / ERROR, dtype=torch.float64)
    residual = Residual(lambda x: (A @ x,), y, weights, floor=float(NUMBERS), before=lambda x: x)
    covariance = A @ A.T + ERROR**2 * torch.eye(NUMBERS, dtype=torch.float64)
    oracle = -2.0 * float(MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y))
    for place in (torch.zeros(UNKNOWNS, dtype=torch.float64), 3.0 * draws(rng, UNKNOWNS)):
        found = unlikely(residual, place, residual.normal(place, UNKNOWNS))
        assert found + NUMBERS * math.log(2.0 * math.pi) == pytest.approx(oracle)


def two_humps(error):
    """x² = 1 with this error, under a standard normal prior around 0.3."""
    weights, one = torch.full((1,), 1.0 / error, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    residual = Residual(lambda x: (x.square(),), one, weights, floor=1.0, before=lambda x: x - 0.3)
    grid = torch.linspace(-4, 4, 40_001, dtype=torch.float64)
    density = torch.exp(-0.5 * (((grid.square() - 1.0) / error).square() + (grid - 0.3).square()))
    return residual, grid, density


def at(*x):
    return [torch.tensor([one], dtype=torch.float64) for one in x]


def test_of_two_humps_it_is_the_mean_and_the_variance_of_both(rng):
    residual, grid, density = two_humps(0.1)
    mean = float((grid * density).sum() / density.sum())
    variance = float(((grid - mean).square() * density).sum() / density.sum())
    modes, alone = (Modes(residual, at(*places), 1) for places in ((1.0, -1.0), (1.0,)))
    found = modes.mean(400, rng, lambda draw: None)
    assert float(found.mean) == pytest.approx(mean, abs=0.02)
    assert float(found.variance) == pytest.approx(variance, rel=0.05)
    assert float(alone.mean(400, rng, lambda draw: None).mean) > 0.9


def test_both_humps_together_are_as_likely_as_the_grid_says():
    residual, grid, density = two_humps(0.1)
    step = float(grid[1] - grid[0])
    oracle = -2.0 * math.log(float(density.sum()) * step / 0.1 / math.sqrt(2.0 * math.pi))
    both, one = (Modes(residual, at(*places), 1).unlikely for places in ((1.0, -1.0), (1.0,)))
    assert both == pytest.approx(oracle, abs=0.02)
    assert both < one


def test_a_step_that_leads_nowhere_makes_a_place_no_likelier():
    """From 0.2 Gauss-Newton leads far beyond the hump."""
    residual, *_ = two_humps(0.1)
    (place,) = at(0.2)
    normal = residual.normal(place, 1)
    volume = math.log(float(normal.matrix) * 0.1**2)
    assert float(normal.slope.square() / normal.matrix) > 0.9 * normal.cost
    assert unlikely(residual, place, normal) == pytest.approx(normal.cost + volume)


def test_a_mode_that_is_far_less_likely_costs_no_draws(rng):
    residual, *_ = two_humps(0.1)
    drawn = []
    found = Modes(residual, at(1.0, 0.0), 1).mean(40, rng, drawn.append)
    assert float(found.mean) > 0.9
    assert len(drawn) == 50


def test_shares_are_by_probability_and_what_is_hardly_likely_has_none():
    assert shares([10.0, 10.0 + 2.0 * math.log(3.0)]) == pytest.approx([0.75, 0.25])
    assert shares([0.0, 20.0, math.inf]) == [1.0, 0.0, 0.0]


def test_a_mixtures_variance_is_that_within_and_between(rng):
    means = [
        PosteriorMean(torch.tensor([mean]), torch.tensor([variance]), 1.0, 10)
        for mean, variance in ((0.0, 1.0), (4.0, 9.0))
    ]
    found = mixture(means, [0.25, 0.75])
    many = torch.cat([draws(rng, 100_000), 4.0 + 3.0 * draws(rng, 300_000)])
    assert float(found.mean) == pytest.approx(float(many.mean()), abs=0.03)
    assert float(found.variance) == pytest.approx(float(many.var()), rel=0.02)
    assert found.draws == 20
