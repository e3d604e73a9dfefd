import pytest
import torch
from scipy.fft import dctn

from fedsim.bounds.gaussian_prior import GaussianPrior, dct_matrix
from fedsim.bounds.public_prior import PublicPrior
from fedsim.errors import ConfigError


def test_the_transform_is_scipys(rng):
    image = torch.rand(6, 8, generator=rng, dtype=torch.float64)
    ours = dct_matrix(6) @ image @ dct_matrix(8).T
    assert torch.allclose(ours, torch.from_numpy(dctn(image.numpy(), norm="ortho")), atol=1e-12)


def test_a_white_prior_divides_by_its_deviation(rng):
    images = torch.rand(2, 3, 4, 4, generator=rng, dtype=torch.float64)
    whitened = GaussianPrior(image_mean=0.4, image_std=0.2, decay=0, colour=1).whitened(images)
    assert torch.allclose(whitened.square().sum(), ((images - 0.4) / 0.2).square().sum())


@pytest.mark.parametrize("prior", [GaussianPrior(), GaussianPrior(decay=2.0, colour=0.1, image_std=0.15)])
def test_pixels_of_the_prior_have_its_deviation_and_neighbours_are_alike_where_it_decays(prior):
    matrix = prior.whitened(torch.eye(48, dtype=torch.float64).view(48, 3, 4, 4) + prior.image_mean).flatten(1)
    covariance = torch.linalg.inv(matrix @ matrix.T)
    assert float(covariance.diagonal().mean()) == pytest.approx(prior.image_std**2, rel=1e-9)
    assert float(covariance[0, 1]) > 0.3 * float(covariance[0, 0])
    assert float(covariance[0, 16]) > 0.5 * float(covariance[0, 0]), "channels are alike"


def test_colouring_undoes_whitening(rng):
    prior, images = GaussianPrior(image_mean=0.4), torch.rand(2, 3, 4, 6, generator=rng, dtype=torch.float64)
    assert torch.allclose(prior.coloured(prior.whitened(images)), images, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("public", [True, False])
def test_a_windows_covariance_is_a_block_of_that_of_all_pixels(public, channels, rng):
    shape, rows, columns = (channels, 6, 8), slice(1, 4), slice(6, 8)
    prior = PublicPrior.of(torch.rand(20, *shape, generator=rng)) if public else GaussianPrior()
    units = torch.eye(channels * 48, dtype=torch.float64).view(-1, *shape)
    root = (prior.coloured(units) - prior.centre(units.shape))[..., rows, columns].flatten(1)
    torch.testing.assert_close(prior.covariance(shape, rows, columns), root.T @ root)


def test_draws_are_its_own(rng):
    prior = GaussianPrior(image_std=0.1)
    drawn = prior.draw((500, 1, 6, 6), rng)
    one = torch.randn(500, 1, 6, 6, generator=rng, dtype=torch.float64)
    assert float(prior.whitened(drawn).square().mean()) == pytest.approx(1.0, rel=0.1)
    assert float(prior.whitened(0.5 + 0.1 * one).square().mean()) > 1.3, "white noise is none of it"


@pytest.mark.parametrize("wrong", [{"image_std": 0}, {"image_mean": 2.0}, {"decay": -1}, {"colour": 0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GaussianPrior(**wrong)
