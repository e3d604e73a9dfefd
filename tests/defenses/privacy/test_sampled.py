"""Composed losses of Poisson samples against closed forms, drawn losses and another library."""

import math
import time

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from defenses import DPSGD
from defenses.base import ClientRound
from defenses.privacy.accounting import gaussian_epsilon, rdp_epsilon, sampled_gaussian_rdp
from defenses.privacy.sampled import SampledLoss, composed_epsilon
from fedsim.bounds.privacy import FIRST_ROUND
from tests.defenses.privacy.test_accounting import DP_ACCOUNTING


def error_of(epsilon):
    """By how much it may be too large."""
    return max(0.02, 0.021 * epsilon)


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.001), (1.0, 0.1), (0.5, 0.3), (2.0, 0.5), (0.7, 0.9)])
def test_one_step_is_the_closed_form(sigma, rate):
    """The larger of the hockey-stick divergences of (1 - q) N(0, σ²) + q N(1, σ²) and N(0, σ²), by their tails."""
    delta, tail = 1e-5, stats.norm.sf

    def surplus(epsilon):
        at = sigma**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
        absent, present = tail(at / sigma), (1 - rate) * tail(at / sigma) + rate * tail((at - 1) / sigma)
        with_image = present - math.exp(epsilon) * absent
        if (ratio := math.exp(-epsilon) - 1 + rate) <= 0:
            return with_image
        at = sigma**2 * math.log(ratio / rate) + 0.5
        absent, present = tail(-at / sigma), (1 - rate) * tail(-at / sigma) + rate * tail((1 - at) / sigma)
        return max(with_image, absent - math.exp(epsilon) * present)

    exact = optimize.brentq(lambda epsilon: surplus(epsilon) - delta, 1e-9, 60.0)
    assert exact < composed_epsilon(sigma, (rate,), (1,), delta) < exact + error_of(exact)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (4.0, 30), (0.5, 3)])
def test_who_takes_all_images_has_gaussian_noise(sigma, steps):
    exact = gaussian_epsilon(1e-5, math.sqrt(steps) / sigma)
    assert exact < composed_epsilon(sigma, (1.0,), (steps,), 1e-5) < exact + error_of(exact)


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta", "rdp", "pld"), DP_ACCOUNTING)
def test_it_is_the_second_librarys_exact_figure(rate, sigma, steps, delta, rdp, pld):
    found = composed_epsilon(sigma, (rate,), (steps,), delta)
    assert 0.999 * pld < found < pld + error_of(pld)


def test_it_is_far_below_renyis_bound_where_few_are_sampled():
    assert composed_epsilon(1.0, (0.001,), (100,), 1e-5) < 0.11 * rdp_epsilon(
        100 * sampled_gaussian_rdp(1.0, 0.001), 1e-5
    )


def test_steps_at_two_rates_are_drawn_losses_added_up():
    rng, sigma, delta, draws = np.random.default_rng(0), 0.9, 0.01, 400_000
    rates, counts = (0.2, 0.4), (6, 3)
    found = composed_epsilon(sigma, rates, counts, delta)
    largest, before = 0.0, 0.0
    for present in (True, False):
        losses = np.zeros(draws)
        for rate, count in zip(rates, counts, strict=True):
            for _ in range(count):
                x = rng.normal(0, sigma, draws) + present * (rng.random(draws) < rate)
                ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
                losses += ratio if present else -ratio
        largest = max(largest, np.maximum(0.0, -np.expm1(found - losses)).mean())
        before = max(before, np.maximum(0.0, -np.expm1(found - error_of(found) - losses)).mean())
    assert largest < 1.02 * delta, "what it promises holds"
    assert before > 0.98 * delta, "and not much less would"
    assert composed_epsilon(sigma, rates[::-1], counts[::-1], delta) == pytest.approx(found, rel=1e-6)
    twice = composed_epsilon(1.0, (0.1, 0.1), (5, 5), 1e-5)
    assert twice == pytest.approx(composed_epsilon(1.0, (0.1,), (10,), 1e-5), rel=1e-3)


@pytest.mark.parametrize("present", [True, False])
def test_the_loss_has_the_distribution_and_mean_of_its_draws(present):
    rng, sigma, rate = np.random.default_rng(1), 0.8, 0.3
    x = rng.normal(0, sigma, 400_000) + present * (rng.random(400_000) < rate)
    losses = (1 if present else -1) * np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
    loss = SampledLoss(sigma, rate, present)
    for at in (-0.5, -0.3, -0.1, 0.05, 0.3, 0.6):
        assert float(loss.cdf(at)) == pytest.approx((losses <= at).mean(), abs=0.003)
    assert loss.mean(-50.0, 50.0) == pytest.approx(losses.mean(), abs=5 * losses.std() / math.sqrt(len(losses)))
    kept = losses[(losses > -0.2) & (losses < 0.4)]
    assert loss.mean(-0.2, 0.4) == pytest.approx(kept.mean(), abs=1e-3)


def test_more_steps_noise_or_images_go_the_right_way():
    at = composed_epsilon(1.0, (0.05,), (50,), 1e-5)
    assert composed_epsilon(1.0, (0.05,), (80,), 1e-5) > at
    assert composed_epsilon(1.0, (0.08,), (50,), 1e-5) > at
    assert composed_epsilon(1.3, (0.05,), (50,), 1e-5) < at
    assert composed_epsilon(1.0, (0.05,), (50,), 1e-3) < at


def test_it_says_nothing_near_rounding_and_takes_no_longer_than_a_moment():
    assert composed_epsilon(1.0, (0.1,), (10,), 1e-13) == math.inf
    assert composed_epsilon(1.0, tuple(n / 100 for n in range(1, 12)), (1,) * 11, 1e-5) == math.inf
    for sigma, rate, steps in ((0.01, 0.5, 100), (0.3, 0.9, 10**6), (1.0, 0.01, 10**6), (30.0, 1e-6, 10**5)):
        sampled_gaussian_rdp(sigma, rate)
        start = time.process_time()
        assert composed_epsilon(sigma, (rate,), (steps,), 1e-5) > 0.0
        assert time.process_time() - start < 5.0


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1_500), (0.2, 100)])
def test_beyond_what_e_to_a_loss_holds_nothing_is_said(sigma, steps):
    """The exact figure is 914 and 1,462: sums of losses that were cut off at 710 said 710."""
    assert gaussian_epsilon(1e-5, math.sqrt(steps) / sigma) > 900
    assert composed_epsilon(sigma, (1.0,), (steps,), 1e-5) == math.inf


def test_what_is_reported_never_falls_though_the_grid_of_more_steps_is_another():
    each = [composed_epsilon(1.0, (2e-4,), (steps,), 1e-5) for steps in (4, 5)]
    assert each[1] < each[0]  # both are bounds, and of fewer steps too
    memory, said = {}, []
    for steps in (4, 5):
        defense = DPSGD(noise_multiplier=1.0, amplification="poisson")
        memory |= {FIRST_ROUND: torch.tensor(1), "rates": torch.tensor([2e-4], dtype=torch.float64)}
        memory |= {"counts": torch.tensor([steps]), "rdp": steps * sampled_gaussian_rdp(1.0, 2e-4)}
        defense._turn = ClientRound(steps, 5000, memory)
        said.append(defense.measurements()["epsilon"])
    assert said[0] == said[1] == pytest.approx(each[0])
