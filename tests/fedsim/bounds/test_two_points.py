"""Two named images behind Gaussian noise: the best test by Monte Carlo, and what makes images coarser."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import norm

from fedsim.bounds.two_points import blurred, distance, pixelated, right_at_most
from fedsim.errors import ConfigError


@pytest.mark.parametrize("apart", [0.0, 0.7, 2.5])
def test_the_likelihood_ratio_reaches_it_and_another_test_does_not_pass_it(rng, apart):
    draws, size, std = 40_000, 6, 0.3
    direction = torch.randn(size, generator=rng)
    one = torch.randn(size, generator=rng)
    other = one + apart * std * direction / direction.norm()
    secret = torch.randint(2, (draws,), generator=rng)
    seen = torch.stack([one, other])[secret] + std * torch.randn(draws, size, generator=rng)

    def right(ratio):
        return float(((ratio > 0).long() == secret).float().mean())

    best = right((seen - one).square().sum(dim=1) - (seen - other).square().sum(dim=1))
    worse = right((seen - one).abs().sum(dim=1) - (seen - other).abs().sum(dim=1))
    bound = right_at_most(distance({"f": one}, {"f": other}, std))
    assert bound == pytest.approx(norm.cdf(apart / 2), abs=1e-6)
    assert best == pytest.approx(bound, abs=0.01)
    assert worse <= bound + 0.01


def test_equal_images_are_a_coin_and_without_noise_any_difference_tells():
    one = {"a": torch.ones(3), "count": torch.tensor(2)}
    assert right_at_most(distance(one, one, 0.1)) == 0.5
    assert right_at_most(distance(one, one, 0.0)) == 0.5
    assert right_at_most(distance(one, {"a": torch.zeros(3), "count": torch.tensor(9)}, 0.0)) == 1.0


@pytest.mark.parametrize(("one", "other"), [(torch.tensor(2), torch.tensor(5)), (torch.tensor(1j), torch.tensor(4j))])
def test_tensors_of_every_type_count(one, other):
    assert distance({"f": one}, {"f": other}, 2.0) == 1.5


def test_the_blur_is_scipys(rng):
    image = torch.rand(2, 3, 12, 14, generator=rng, dtype=torch.float64)
    found = blurred(image, 0.9)
    expected = gaussian_filter(image.numpy(), (0, 0, 0.9, 0.9), mode="mirror", truncate=math.ceil(4 * 0.9) / 0.9)
    assert np.allclose(found.numpy(), expected, atol=1e-12)
    assert torch.allclose(blurred(torch.full((1, 1, 8, 8), 0.3), 5.0), torch.full((1, 1, 8, 8), 0.3))


@pytest.mark.parametrize("block", [2, 3, 5, 16])
def test_blocks_take_their_mean_at_the_edges_too(rng, block):
    image = torch.rand(1, 3, 8, 10, generator=rng, dtype=torch.float64)
    expected = image.clone()
    for top in range(0, 8, block):
        for left in range(0, 10, block):
            part = expected[..., top : top + block, left : left + block]
            part[:] = image[..., top : top + block, left : left + block].mean(dim=(-2, -1), keepdim=True)
    assert torch.allclose(pixelated(image, block), expected)


@pytest.mark.parametrize(("call", "key"), [(lambda x: blurred(x, 0.0), "blurs"), (lambda x: pixelated(x, 1), "blocks")])
def test_what_changes_nothing_is_refused(call, key):
    with pytest.raises(ConfigError, match=key):
        call(torch.zeros(1, 1, 4, 4))
