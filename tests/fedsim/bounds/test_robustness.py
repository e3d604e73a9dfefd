"""The theorem against closed cases and against attackers who guess among candidates."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from defenses.privacy.accounting import gaussian_delta
from fedsim.bounds.robustness import (
    GaussianDP,
    blow_up,
    composed,
    of_epsilon,
    releases_within,
    together,
    with_copies,
)
from fedsim.errors import ConfigError

DRAWS = 20_000


def guesses(candidates, mu, rng, releases=1):
    """How often the likeliest candidate is the one that was released; each candidate is at most 1 long."""
    chosen = torch.randint(len(candidates), (DRAWS,), generator=rng)
    noise = torch.randn(DRAWS, candidates.shape[1], generator=rng) * math.sqrt(releases) / mu
    seen = releases * candidates[chosen] + noise
    scores = seen @ candidates.T - releases * candidates.square().sum(dim=1) / 2
    return float((scores.argmax(dim=1) == chosen).float().mean())


def within(share):
    return 4 * math.sqrt(max(share * (1 - share), 0.01) / DRAWS)


def test_nothing_released_changes_nothing_and_the_books_case():
    assert blow_up(0.03, 0.0) == pytest.approx(0.03)
    assert blow_up(0.1, 1.0) == pytest.approx(0.389, abs=5e-4)
    assert blow_up(0.1, math.inf) == 1.0


@pytest.mark.parametrize(("count", "mu"), [(2, 0.5), (5, 1.0), (30, 2.0), (200, 3.0)])
def test_nobody_who_guesses_among_candidates_is_right_more_often(rng, count, mu):
    candidates = torch.randn(count, 12, generator=rng)
    candidates /= candidates.norm(dim=1, keepdim=True)
    found, bound = guesses(candidates, mu, rng), blow_up(1 / count, mu)
    assert 1 / count < found <= bound + within(bound)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_two_opposite_gradients_reach_it(rng, mu):
    found = guesses(torch.tensor([[1.0], [-1.0]]), mu, rng)
    assert blow_up(0.5, mu) == pytest.approx(norm.cdf(mu))
    assert found == pytest.approx(norm.cdf(mu), abs=within(found))


def test_orthogonal_candidates_agree_with_their_integral(rng):
    exact, _ = quad(lambda z: norm.pdf(z - 1.0) * norm.cdf(z) ** 9, -12, 12)
    assert exact == pytest.approx(0.341, abs=5e-4)
    assert guesses(torch.eye(10), 1.0, rng) == pytest.approx(exact, abs=within(exact))
    assert exact < blow_up(0.1, 1.0)


def test_releases_add_up_by_their_squares(rng):
    assert composed([0.3] * 25) == pytest.approx(5 * 0.3)
    found = guesses(torch.tensor([[1.0], [-1.0]]), 0.4, rng, releases=9)
    assert found == pytest.approx(blow_up(0.5, composed([0.4] * 9)), abs=within(found))


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("kappa", [1e-6, 1e-3, 0.02])
def test_epsilon_alone_says_less_and_the_best_epsilon_says_the_same(mu, kappa):
    epsilons = [0.001 * k for k in range(1, 30_000, 7)]
    bounds = [of_epsilon(kappa, epsilon, gaussian_delta(epsilon, mu)) for epsilon in epsilons]
    assert min(bounds) >= blow_up(kappa, mu) - 1e-12
    assert min(bounds) == pytest.approx(blow_up(kappa, mu), rel=1e-3)


def test_how_many_releases_keep_a_bound():
    for mu in (0.05, 0.3, 1.4):
        last = releases_within(mu)
        assert blow_up(1e-3, math.sqrt(last) * mu) <= 0.05 < blow_up(1e-3, math.sqrt(last + 1) * mu)
    assert (releases_within(0.0), releases_within(2.0), releases_within(math.inf)) == (math.inf, 0, 0)


@pytest.mark.parametrize("wrong", [{"kappa": 0.0}, {"kappa": 1.0}, {"mu": -0.1}])
def test_what_is_no_probability_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        blow_up(**{"kappa": 0.1, "mu": 1.0, **wrong})
    with pytest.raises(ConfigError, match="epsilon"):
        of_epsilon(0.1, -1.0, 0.0)


def test_releases_of_several_clients_add_up_and_copies_in_one_of_them_do_more():
    once, thrice = GaussianDP(0.5, 4, "image", 1e-5, "so"), with_copies(GaussianDP(0.5, 4, "image", 1e-5, "so"), 3)
    assert (thrice.mu, thrice.releases, thrice.copies) == (1.5, 4, 3)
    both = together([once, thrice])
    assert (both.mu, both.releases) == (pytest.approx(math.hypot(0.5, 1.5)), 8)
    assert both.because == "so, and 3 of them are equal; 2 clients hold one image"
    assert (together([once]), with_copies(once, 1)) == (once, once)


@pytest.mark.parametrize("copies", [1, 2, 16])
@pytest.mark.parametrize("releases", [1, 5])
def test_what_lasts_never_contradicts_gamma(copies, releases):
    for mu in (0.01, 0.05, 0.2, 0.6, 1.44, 1.46, 3.0):
        proven = with_copies(GaussianDP(mu, releases, "image", 1e-5, "so"), copies)
        lasts = releases_within(proven.mu / math.sqrt(proven.releases))
        assert (lasts >= releases) is proven.proven
