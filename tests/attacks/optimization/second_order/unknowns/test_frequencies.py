import pytest
import torch

from attacks.optimization.second_order.unknowns.frequencies import Frequencies, first_order
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.bounds.public_prior import PublicPrior

SHAPE = (2, 3, 6, 4)


@pytest.fixture(params=["smooth", "public"])
def frequencies(request, rng):
    public = PublicPrior.of(torch.rand(9, 3, 6, 4, generator=rng, dtype=torch.float64))
    prior = GaussianPrior() if request.param == "smooth" else public
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.4])
    return Frequencies.of(prior, SHAPE, mean.double(), std.double(), torch.device("cpu"))


def test_a_point_and_its_coordinates_are_one(frequencies, rng):
    z = torch.randn(144, generator=rng, dtype=torch.float64)
    assert torch.allclose(frequencies.coordinates(frequencies.point(z)), z, atol=1e-12)


def test_no_coordinate_is_the_mean_of_the_prior_as_the_model_reads_it(frequencies):
    unit = frequencies.point(torch.zeros(144, dtype=torch.float64)).view(SHAPE) * frequencies.std + frequencies.mean
    assert torch.allclose(unit, frequencies.prior.centre(SHAPE), atol=1e-12)


def test_the_first_coordinates_are_each_images_colour(frequencies):
    zero = torch.zeros(144, dtype=torch.float64)
    moved = zero.clone()
    moved[:6] = 1.0
    change = (frequencies.point(moved) - frequencies.point(zero)).view(SHAPE)
    assert torch.allclose(change, change[..., :1, :1].expand(SHAPE), atol=1e-12)
    assert float(change.abs().amin()) > 0


def test_first_order_steps_go_down_and_are_the_same_again(rng):
    matrix = torch.randn(12, 5, generator=rng)
    start = torch.full((5,), 2.0)
    found = [first_order(lambda x: matrix @ x, start, steps=40) for _ in range(2)]
    assert float((matrix @ found[0]).norm()) < 0.1 * float((matrix @ start).norm())
    assert torch.equal(*found)
    assert bool((start == 2.0).all())
