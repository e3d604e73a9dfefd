"""What adds up over rounds, against the rounds taken as one release."""

import math

import pytest
import torch

from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.bounds.references import gaussian_reference, information, prior_precision
from fedsim.bounds.rounds import running_reference

PRECISION = prior_precision(GaussianPrior(image_std=0.2, colour=1.0), (1, 3, 3))


def rounds(rng, count=3):
    return [torch.randn(4, 9, generator=rng, dtype=torch.float64) for _ in range(count)]


def test_all_rounds_together_are_one_release_of_all_their_numbers(rng):
    std = torch.full((4,), 0.5, dtype=torch.float64)
    jacobians = rounds(rng)
    found = running_reference([information(J, std) for J in jacobians], PRECISION)
    whole = gaussian_reference([information(torch.cat(jacobians), std.repeat(3))], PRECISION)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(whole)


def test_a_later_round_that_earlier_releases_chose_adds_up_too(rng):
    """The posterior mean over both rounds; in the second the server asks for what the first told least of."""
    first, asked = rounds(rng, 2)
    images = torch.randn(20_000, 9, generator=rng, dtype=torch.float64) @ torch.linalg.cholesky(PRECISION.inverse()).T
    seen = images @ first.T + torch.randn(20_000, 4, generator=rng, dtype=torch.float64)
    sign = torch.sign(seen[:, :1])  # decides which of two equally telling matrices comes next
    later = sign * (images @ asked.T) + torch.randn(20_000, 4, generator=rng, dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    each = [information(J, ones) for J in (first, asked)]
    posterior = (seen @ first + sign * later @ asked) @ torch.linalg.inv(sum(each) + PRECISION)
    found = -10 * math.log10(float((posterior - images).square().mean()))
    assert found == pytest.approx(running_reference(each, PRECISION)[-1], abs=0.1)
