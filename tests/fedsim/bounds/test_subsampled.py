"""Poisson samples: one step in closed form, several by Monte Carlo of the likelihood ratio."""

import math

import pytest
import torch
from scipy.stats import norm

from fedsim.bounds.robustness import blow_up
from fedsim.bounds.subsampled import _by_sum, subsampled_blow_up
from fedsim.errors import ConfigError


@pytest.mark.parametrize("steps", [1, 9])
def test_who_takes_every_image_has_the_gaussian_case(steps):
    assert subsampled_blow_up(0.01, 2.0, 1.0, steps) == blow_up(0.01, math.sqrt(steps) / 2.0)


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 0.7)])
@pytest.mark.parametrize("kappa", [1e-3, 0.1])
def test_one_step_is_a_mixture(rate, noise, kappa):
    """The likelihood ratio grows with what is seen, so the best event is one tail."""
    exact = (1 - rate) * kappa + rate * norm.cdf(norm.ppf(kappa) + 1 / noise)
    assert exact <= subsampled_blow_up(kappa, noise, rate, 1) <= 1.02 * exact


def test_several_steps_by_monte_carlo(rng):
    rate, noise, steps, kappa, draws = 0.2, 1.0, 10, 0.05, 100_000

    def ratios(shift):
        taken = (torch.rand(draws, steps, generator=rng) < rate) * shift
        seen = taken + noise * torch.randn(draws, steps, generator=rng)
        return torch.log(1 - rate + rate * torch.exp((2 * seen - 1) / (2 * noise**2))).sum(dim=1)

    threshold = torch.quantile(ratios(0.0)[:100_000], 1 - kappa)
    found = float((ratios(1.0) > threshold).float().mean())
    bound = subsampled_blow_up(kappa, noise, rate, steps)
    assert found - 0.005 <= bound <= 1.03 * found + 0.005


def test_it_grows_with_steps_and_stays_below_what_taking_every_image_gives():
    found = [subsampled_blow_up(1e-3, 1.0, 0.1, steps) for steps in (1, 10, 100)]
    assert found == sorted(found)
    assert all(one <= blow_up(1e-3, math.sqrt(steps)) for one, steps in zip(found, (1, 10, 100), strict=True))
    assert found[-1] < 0.1 < blow_up(1e-3, 10.0)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(0.5, 0.5, 2000), (1.0, 0.01, 10**6)])
def test_where_the_sum_tells_it_almost_surely_nothing_is_composed(monkeypatch, noise, rate, steps):
    monkeypatch.setattr("fedsim.bounds.subsampled._losses", None)
    assert subsampled_blow_up(1e-3, noise, rate, steps) == 1.0


def test_what_the_sum_tells_by_monte_carlo(rng):
    """And it is no more than all that the releases tell."""
    rate, noise, steps, kappa, draws = 0.2, 1.0, 10, 0.05, 200_000
    taken = (torch.rand(draws, steps, generator=rng) < rate).sum(dim=1)
    seen = taken + noise * math.sqrt(steps) * torch.randn(draws, generator=rng)
    found = float((seen > noise * math.sqrt(steps) * norm.ppf(1 - kappa)).float().mean())
    assert _by_sum(kappa, noise, rate, steps) == pytest.approx(found, abs=4 * math.sqrt(found / draws))
    assert _by_sum(kappa, noise, rate, steps) <= subsampled_blow_up(kappa, noise, rate, steps)
    assert _by_sum(kappa, noise, rate, 1) == pytest.approx((1 - rate) * kappa + rate * norm.cdf(norm.ppf(kappa) + 1))


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"noise_multiplier": 0.0}, {"steps": 0}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        subsampled_blow_up(**{"kappa": 0.1, "noise_multiplier": 1.0, "rate": 0.1, "steps": 2, **wrong})
