"""The confidence limit against its own coverage."""

import math

import pytest
import torch

from fedsim.bounds.empirical import directions, mu_estimate, mu_lower
from fedsim.errors import ConfigError


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.5, 4.0])
def test_the_lower_end_passes_the_truth_as_often_as_it_says(rng, mu):
    trials, above = 600, 0
    for _ in range(trials):
        inside = mu + torch.randn(12, generator=rng)
        above += mu_lower(inside, torch.randn(8, generator=rng), 0.9) > mu
    assert abs(above / trials - 0.1) < 4 * math.sqrt(0.1 * 0.9 / trials)


def test_who_shows_less_inside_shows_nothing():
    assert mu_lower(torch.zeros(5), torch.ones(5)) == 0.0
    assert mu_lower(torch.tensor([0.0, 0.1]), torch.tensor([1.0, 1.1])) == 0.0
    assert mu_estimate(torch.tensor([0.0, 0.1]), torch.tensor([1.0, 1.1])) == 0.0


def test_many_canaries_come_close(rng):
    inside, outside = 2 + torch.randn(20_000, generator=rng), torch.randn(20_000, generator=rng)
    assert 1.95 < mu_lower(inside, outside) < mu_estimate(inside, outside) < 2.05
    assert mu_lower(3 * inside + 7, 3 * outside + 7) == pytest.approx(mu_lower(inside, outside), rel=1e-4)


def test_without_noise_there_is_no_limit_and_without_a_difference_none_to_find():
    assert mu_lower(torch.ones(5), torch.zeros(5)) == math.inf
    assert mu_lower(torch.ones(5), torch.ones(5)) == 0.0
    assert mu_lower(1 + 1e-6 * torch.arange(5.0), 1e-6 * torch.arange(5.0)) > 1e4


@pytest.mark.parametrize(("shape", "count"), [((40,), 39), ((12, 9), 88), ((5, 4, 3, 2), 92)])
def test_directions_are_unit_vectors_at_right_angles_that_miss_what_is_common(rng, shape, count):
    found = directions(shape, count, rng)
    flat = found.flatten(1)
    assert found.shape == (count, *shape)
    assert torch.allclose(flat @ flat.T, torch.eye(count), atol=1e-5)
    matrices = found.reshape(count, shape[0], -1)
    assert float(matrices.sum(dim=1).abs().max()) < 1e-5, "what each row has in common"
    if len(shape) > 1:
        assert float(matrices.sum(dim=2).abs().max()) < 1e-5, "and each column"
    assert not torch.equal(found, directions(shape, count, rng))


def test_no_more_directions_than_there_are(rng):
    with pytest.raises(ConfigError, match="canaries=89: must be from 1 to 88"):
        directions((12, 9), 89, rng)


def test_too_few_are_refused():
    with pytest.raises(ConfigError, match="canaries=3"):
        mu_lower(torch.ones(2), torch.ones(1))
    with pytest.raises(ConfigError, match="confidence=1"):
        mu_lower(torch.ones(2), torch.ones(2), 1.0)
