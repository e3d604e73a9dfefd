"""What varies among a prior's images, as unknowns."""

import math

import pytest
import torch

import fedsim
from attacks.optimization.second_order.unknowns.prior_directions import PriorDirections
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.bounds.public_prior import PublicPrior
from fedsim.models import Architecture, ModelSpec

SHAPE = (2, 3, 8, 8)


@pytest.fixture
def observation(rng):
    spec = ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": 32, "depth": 1})
    vit = Architecture(spec, (), 0).build(keep=True)
    return fedsim.observe(vit, torch.rand(1, 3, 8, 8, generator=rng), torch.tensor([3]))


def gray(count, rng):
    return torch.rand(count, 1, 8, 8, generator=rng, dtype=torch.float64).expand(-1, 3, -1, -1)


def directions_of(observation, prior, cpu):
    return PriorDirections.of(observation, prior, SHAPE, cpu)


def test_of_gray_images_one_number_a_pixel_varies(observation, cpu, rng):
    directions = directions_of(observation, PublicPrior.of(gray(50, rng)), cpu)
    assert directions.count == 2 * 64
    point = observation.normalised(gray(2, rng)).flatten()
    z = directions.unknowns(point)
    assert z.shape == (128,)
    assert torch.allclose(directions.point(z), point, atol=1e-12)


def test_colours_of_another_image_are_left_out(observation, cpu, rng):
    directions = directions_of(observation, PublicPrior.of(gray(50, rng)), cpu)
    images = torch.rand(SHAPE, generator=rng, dtype=torch.float64)
    kept = directions.point(directions.unknowns(observation.normalised(images).flatten())).view(SHAPE)
    found = observation.to_unit_range(kept)
    assert torch.allclose(found, images.mean(dim=1, keepdim=True).expand(SHAPE), atol=1e-12)


def test_all_of_photographs_varies(observation, cpu, rng):
    directions = directions_of(observation, GaussianPrior(), cpu)
    assert directions.count == math.prod(SHAPE)
    point = torch.randn(directions.count, generator=rng, dtype=torch.float64)
    assert torch.allclose(directions.point(directions.unknowns(point)), point, atol=1e-9)


def test_where_one_public_image_tells_of_no_spread_all_varies(observation, cpu, rng):
    flat = torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64)
    assert directions_of(observation, PublicPrior.of(flat), cpu).count == math.prod(SHAPE)


def test_units_are_the_prior_s_standard_deviations(observation, cpu, rng):
    prior = PublicPrior.of(torch.rand(200, 3, 8, 8, generator=rng, dtype=torch.float64))
    directions = directions_of(observation, prior, cpu)
    drawn = torch.cat([prior.coloured(torch.randn(SHAPE, generator=rng, dtype=torch.float64)) for _ in range(40)])
    z = torch.cat([directions.unknowns(observation.normalised(two).flatten()) for two in drawn.split(2)])
    assert float(z.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(z.square().mean()) == pytest.approx(1.0, abs=0.05)
