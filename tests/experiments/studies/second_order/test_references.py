"""The reference behind rounding, beside the one of the information matrix."""

import math

import pytest
import torch

from experiments.studies.second_order.references import behind_rounding
from fedsim.bounds.public_prior import PublicPrior
from fedsim.bounds.references import gaussian_reference, information, prior_precision


@pytest.fixture
def prior(rng):
    return PublicPrior.of(torch.rand(20, 3, 4, 4, generator=rng))


def test_it_is_the_reference_of_the_information_where_that_can_be_inverted(prior, rng):
    jacobian = torch.randn(100, 48, generator=rng, dtype=torch.float64)
    std = 0.1 + torch.rand(100, generator=rng, dtype=torch.float64)
    expected = gaussian_reference([information(jacobian, std)], prior_precision(prior, (3, 4, 4)))
    assert behind_rounding(jacobian, std, prior) == pytest.approx(expected, abs=1e-6)


def test_a_batch_of_two_apart_is_the_mean_of_each(prior, rng):
    parts = [torch.randn(60, 48, generator=rng, dtype=torch.float64) for _ in range(2)]
    std = torch.full((60,), 0.3, dtype=torch.float64)
    each = [10 ** (-behind_rounding(part, std, prior) / 10) for part in parts]
    whole = behind_rounding(torch.block_diag(*parts), std.repeat(2), prior)
    assert whole == pytest.approx(-10 * math.log10(sum(each) / 2), abs=1e-6)


def test_nothing_shared_leaves_the_prior_and_exact_numbers_what_is_missing(prior, rng):
    pixels = torch.eye(48, dtype=torch.float64)
    covariance = torch.linalg.inv(prior_precision(prior, (3, 4, 4)))
    nothing = behind_rounding(0.0 * pixels[:1], torch.ones(1, dtype=torch.float64), prior)
    assert nothing == pytest.approx(-10 * math.log10(float(covariance.trace()) / 48), abs=1e-6)
    half = behind_rounding(pixels[:24], torch.full((24,), 1e-9, dtype=torch.float64), prior)
    cross, known = covariance[24:, :24], covariance[:24, :24]
    left = covariance[24:, 24:] - cross @ torch.linalg.inv(known) @ cross.T
    assert half == pytest.approx(-10 * math.log10(float(left.trace()) / 48), abs=1e-6)
