"""Against closed cases and Monte Carlo: a theorem where images are Gaussian, and tight where f is linear."""

import math

import pytest
import torch

from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.bounds.references import determined, gaussian_reference, image_by_image, information, prior_precision

SHAPE = (1, 3, 3)
PRIOR = GaussianPrior(image_std=0.2, colour=1.0)


def problem(rng, numbers=12):
    jacobian = torch.randn(numbers, 9, generator=rng, dtype=torch.float64)
    return jacobian, 0.1 + torch.rand(numbers, generator=rng, dtype=torch.float64)


def test_without_noise_of_use_it_is_the_priors_own_deviation(rng):
    jacobian, std = problem(rng)
    found = gaussian_reference([information(jacobian, 1e9 * std)], prior_precision(PRIOR, SHAPE))
    assert found == pytest.approx(-20 * math.log10(0.2), abs=1e-6)


def test_with_as_many_clean_numbers_as_pixels_it_is_the_noise_itself():
    std = torch.full((9,), 0.01, dtype=torch.float64)
    found = gaussian_reference([information(torch.eye(9, dtype=torch.float64), std)], 1e-9 * torch.eye(9).double())
    assert found == pytest.approx(40.0, abs=1e-3)


def test_no_estimator_of_gaussian_images_passes_it_and_the_posterior_mean_reaches_it(rng):
    jacobian, std = problem(rng)
    precision = prior_precision(PRIOR, SHAPE)
    fisher = information(jacobian, std)
    reference = gaussian_reference([fisher], precision)
    cholesky = torch.linalg.cholesky(torch.linalg.inv(precision))
    images = torch.randn(20_000, 9, generator=rng, dtype=torch.float64) @ cholesky.T
    shared = images @ jacobian.T + std * torch.randn(20_000, len(std), generator=rng, dtype=torch.float64)

    def psnr(found):
        return -10 * math.log10(float((found - images).square().mean()))

    posterior = (shared / std**2) @ jacobian @ torch.linalg.inv(fisher + precision)
    least_squares = (shared / std) @ torch.linalg.pinv(jacobian / std[:, None]).T
    assert psnr(posterior) == pytest.approx(reference, abs=0.1)
    assert psnr(least_squares) < reference - 0.3
    assert psnr(0.9 * posterior) < reference


def rounds(rng, count=3):
    return [torch.randn(4, 9, generator=rng, dtype=torch.float64) for _ in range(count)]


def test_all_rounds_together_are_one_release_of_all_their_numbers(rng):
    std, precision = torch.full((4,), 0.5, dtype=torch.float64), prior_precision(PRIOR, SHAPE)
    jacobians = rounds(rng)
    found = gaussian_reference([sum(information(J, std) for J in jacobians)], precision)
    whole = gaussian_reference([information(torch.cat(jacobians), std.repeat(3))], precision)
    assert found == pytest.approx(whole)
    assert found > gaussian_reference([information(jacobians[0], std)], precision)


def test_a_later_round_that_earlier_releases_chose_adds_up_too(rng):
    """The posterior mean over both rounds; in the second the server asks for what the first told least of."""
    (first, asked), precision = rounds(rng, 2), prior_precision(PRIOR, SHAPE)
    images = torch.randn(20_000, 9, generator=rng, dtype=torch.float64) @ torch.linalg.cholesky(precision.inverse()).T
    seen = images @ first.T + torch.randn(20_000, 4, generator=rng, dtype=torch.float64)
    sign = torch.sign(seen[:, :1])  # decides which of two equally telling matrices comes next
    later = sign * (images @ asked.T) + torch.randn(20_000, 4, generator=rng, dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    told = information(first, ones) + information(asked, ones)
    posterior = (seen @ first + sign * later @ asked) @ torch.linalg.inv(told + precision)
    found = -10 * math.log10(float((posterior - images).square().mean()))
    assert found == pytest.approx(gaussian_reference([told], precision), abs=0.1)


def test_image_by_image_is_what_each_posterior_leaves_and_below_the_reference(rng):
    """Images of which every second shows other pixels: none of them is as clear as their average."""
    precision = prior_precision(PRIOR, SHAPE)
    std = torch.full((9,), 0.1, dtype=torch.float64)
    views = [torch.diag((torch.arange(9) < 5).double()), torch.diag((torch.arange(9) >= 5).double())]
    each = [information(view, std) for view in views]
    cholesky = torch.linalg.cholesky(torch.linalg.inv(precision))
    errors = []
    for view, fisher in zip(views, each, strict=True):
        images = torch.randn(20_000, 9, generator=rng, dtype=torch.float64) @ cholesky.T
        shared = images @ view.T + std * torch.randn(20_000, 9, generator=rng, dtype=torch.float64)
        posterior = (shared / std**2) @ view @ torch.linalg.inv(fisher + precision)
        errors.append(float((posterior - images).square().mean()))
    found = image_by_image(each, precision)
    assert -10 * math.log10(sum(errors) / 2) == pytest.approx(found, abs=0.1)
    assert found < gaussian_reference(each, precision) - 2
    assert image_by_image(each[:1], precision) == pytest.approx(gaussian_reference(each[:1], precision))
    assert image_by_image(each, [precision, 4.0 * precision]) > found, "of the second more is known beforehand"
    assert image_by_image(each, [precision, precision]) == found


def test_information_is_averaged_before_the_inverse(rng):
    jacobian, std = problem(rng)
    precision = prior_precision(PRIOR, SHAPE)
    strong, weak = information(jacobian, 0.01 * std), information(jacobian, 100 * std)
    both = gaussian_reference([strong, weak], precision)
    assert both == pytest.approx(gaussian_reference([(strong + weak) / 2], precision))


def test_the_bias_of_a_sketch_is_taken_off(rng):
    jacobian, precision = torch.randn(2000, 60, generator=rng).double(), torch.eye(60).double() * 300
    jacobian *= torch.logspace(0, 1.5, 60).double()
    exact, rows = gaussian_reference([jacobian.T @ jacobian], precision), 120
    sketches = [torch.randn(rows, 2000, generator=rng).double() @ jacobian / math.sqrt(rows) for _ in range(20)]
    found = [gaussian_reference([one.T @ one], precision, rows) for one in sketches]
    biased = [gaussian_reference([one.T @ one], precision) for one in sketches]
    assert sum(found) / 20 == pytest.approx(exact, abs=0.1)
    assert sum(biased) / 20 < exact - 0.3


def test_what_rounding_leaves_is_what_monte_carlo_finds(rng):
    jacobian, rounding = problem(rng)
    fact = determined(jacobian, rounding)
    errors = rounding * torch.randn(20_000, len(rounding), generator=rng, dtype=torch.float64)
    found = (errors / rounding) @ torch.linalg.pinv(jacobian / rounding[:, None]).T
    assert (fact.unknowns, fact.rank) == (9, 9)
    assert fact.rounding_psnr == pytest.approx(-10 * math.log10(float(found.square().mean())), abs=0.1)


def test_a_direction_that_nothing_shows_is_counted(rng):
    jacobian, rounding = problem(rng)
    jacobian[:, 4] = 0.0
    fact = determined(jacobian, rounding)
    assert (fact.rank, fact.condition, fact.rounding_psnr) == (8, math.inf, -math.inf)


def test_a_direction_that_is_rounding_alone_is_not_counted():
    """Of four singular values 1 counts from 1/√4 on."""
    moved = torch.diag(torch.tensor([1e3, 1.0, 0.51, 0.49], dtype=torch.float64))
    ranks = [determined(moved, torch.ones(4, dtype=torch.float64), least).rank for least in (0.0, 1.0, 1e4)]
    assert ranks == [4, 3, 0]
