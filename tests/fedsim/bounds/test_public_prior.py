import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression

from fedsim.bounds.public_prior import PublicPrior
from fedsim.bounds.references import prior_precision
from fedsim.errors import ConfigError


@pytest.fixture
def images(rng):
    """Images that vary in gray far more than in colour, and in slow patterns more than in fast ones."""
    slow = torch.randn(300, 1, 1, 1, generator=rng, dtype=torch.float64) * torch.linspace(-1, 1, 6)[:, None]
    fast = 0.1 * torch.randn(300, 1, 6, 6, generator=rng, dtype=torch.float64)
    colour = 0.05 * torch.randn(300, 3, 6, 6, generator=rng, dtype=torch.float64)
    return 0.4 + 0.2 * slow + fast + colour


def test_its_pixels_vary_as_those_of_the_images(images):
    prior = PublicPrior.of(images)
    covariance = torch.linalg.inv(prior_precision(prior, (3, 6, 6)))
    seen = images.flatten(1)
    assert float(covariance.diagonal().mean()) == pytest.approx(float(seen.var(dim=0).mean()), rel=0.1)
    between = torch.cov(seen.T)
    assert float(covariance[0, 1]) == pytest.approx(float(between[0, 1]), abs=0.3 * float(between[0, 1]))
    assert torch.allclose(prior.mean, images.mean(dim=0), atol=0.02)


def test_colouring_undoes_whitening_and_whitened_images_are_white(images):
    prior = PublicPrior.of(images)
    whitened = prior.whitened(images)
    assert torch.allclose(prior.coloured(whitened), images, atol=1e-10)
    assert float(whitened.square().mean()) == pytest.approx(1.0, rel=0.1)


def test_draws_lie_within_images_and_have_its_mean(images, rng):
    prior = PublicPrior.of(images)
    drawn = prior.draw((400, 3, 6, 6), rng)
    assert 0.0 <= float(drawn.min()) <= float(drawn.max()) <= 1.0
    assert torch.allclose(drawn.mean(dim=0), prior.mean, atol=0.06)
    assert torch.equal(prior.centre((2, 3, 6, 6))[1], prior.mean)


def test_one_image_is_no_mean(rng):
    image = torch.rand(1, 3, 6, 6, generator=rng, dtype=torch.float64)
    prior = PublicPrior.of(image)
    assert float((prior.mean - image[0]).abs().mean()) > 0.5 * float(
        (image[0] - image.mean(dim=(2, 3))[0, :, None, None]).abs().mean()
    )
    assert bool((prior.spectrum > 0).all())


def test_the_white_one_knows_the_same_of_a_pixel_and_nothing_of_its_neighbours(images):
    prior = PublicPrior.of(images)
    covariance = torch.linalg.inv(prior_precision(prior.white(), (3, 6, 6)))
    assert torch.allclose(covariance, torch.eye(108, dtype=torch.float64) * covariance[0, 0], atol=1e-12)
    assert float(covariance[0, 0]) == pytest.approx(float(prior.spectrum.square().mean()))


def test_own_images_are_the_linear_regression_on_what_is_seen(images, rng):
    seen = (0.5 * images.flip(-1) + 0.5 * images.roll(1, dims=0) + 0.1).clamp(0.0, 1.0)
    prior = PublicPrior.of(images, seen)
    centred = [(each - each.mean(dim=0)).flatten().numpy() for each in (seen, images)]
    expected = LinearRegression(fit_intercept=False).fit(centred[0][:, None], centred[1]).coef_[0]
    assert float(prior.own_share) == pytest.approx(expected, abs=5e-3)
    errors = [float((guess - images).square().mean()) for guess in (seen, prior.own_images(seen), prior.mean[None])]
    assert errors[1] < min(errors[0], errors[2])


def test_behind_a_flip_it_is_the_image_or_its_mirror_image_whichever_is_likelier(rng):
    """Ramps to the right, of which the model sees every third from the other side."""
    ramps = torch.linspace(0.2, 0.8, 6, dtype=torch.float64).expand(60, 3, 6, 6)
    own = ramps + 0.05 * torch.randn(60, 3, 6, 6, generator=rng, dtype=torch.float64)
    seen = own.clone()
    seen[::3] = own[::3].flip(-1)
    prior = PublicPrior.of(own, seen)
    assert prior.mirrors.tolist() == [[0.0, 0.0, pytest.approx(2 / 3)], [0.0, 1.0, pytest.approx(1 / 3)]]
    assert torch.equal(prior.own_images(seen), own)
    moved = torch.cat([seen[:59], seen[59:].roll(1, dims=-1)])
    assert PublicPrior.of(own, moved).mirrors is None
    assert PublicPrior.of(own, own).mirrors is None
    assert torch.equal(PublicPrior.of(own, own.flip(-1)).own_images(own.flip(-1)), own), "a flip that always acts"


def test_of_a_mixture_by_unknown_weights_less_is_taken_over(images, rng):
    """Against the regression itself, of each image of a pair on one of the two, nobody knows which."""
    first, second = images[: len(images) // 2], images[len(images) // 2 : 2 * (len(images) // 2)]
    mixed = torch.where(torch.rand(len(first), 1, 1, 1, generator=rng) < 0.5, first, second)
    prior = PublicPrior.of(images, images)
    centred = [(each - prior.mean).flatten().numpy() for each in (mixed, first, second)]
    expected = LinearRegression(fit_intercept=False).fit(
        np.concatenate([centred[0], centred[0]])[:, None], np.concatenate(centred[1:])
    )
    found = prior.own_images(mixed, among=2)
    share = float(((found - prior.mean) * (mixed - prior.mean)).sum() / (mixed - prior.mean).square().sum())
    assert share == pytest.approx(expected.coef_[0], abs=0.05)


def test_images_that_are_seen_as_they_are_stay(images):
    assert PublicPrior.of(images).own_images(images) is None
    kept = PublicPrior.of(images.clamp(0.0, 1.0), images.clamp(0.0, 1.0))
    assert torch.allclose(kept.own_images(images), images)


def test_what_is_seen_of_others_tells_nothing(images, rng):
    prior = PublicPrior.of(images, torch.rand(images.shape, generator=rng, dtype=torch.float64))
    assert float(prior.own_share) < 0.02


def test_without_an_image_it_is_refused():
    with pytest.raises(ConfigError, match="images"):
        PublicPrior.of(torch.zeros(0, 3, 4, 4))


@pytest.fixture
def classes(rng):
    """Means of forty classes that differ in slow patterns alone, 2 to 12 images of each, and their labels."""
    slow = torch.linspace(-1, 1, 6)[:, None].expand(3, 6, 6).double()
    means = 0.5 + 0.15 * torch.randn(40, 1, 1, 1, generator=rng, dtype=torch.float64) * slow
    labels = torch.repeat_interleave(torch.arange(40), torch.randint(2, 13, (40,), generator=rng))
    images = means[labels] + 0.1 * torch.randn(len(labels), 3, 6, 6, generator=rng, dtype=torch.float64)
    return means, images, labels


def test_a_class_of_many_images_has_their_moments(classes, rng):
    means, images, labels = classes
    more = means[7] + 0.03 * torch.randn(500, 3, 6, 6, generator=rng, dtype=torch.float64)
    prior = PublicPrior.of_class(torch.cat([images, more]), torch.cat([labels, torch.full((500,), 7)]), 7)
    assert float((prior.mean - means[7]).abs().max()) < 0.02
    assert float(prior.spectrum.square().mean().sqrt()) == pytest.approx(0.03, rel=0.2)


def test_class_means_of_few_images_are_nearer_than_their_images_mean_and_the_mean_of_all(classes):
    means, images, labels = classes
    whole, errors = PublicPrior.of(images).mean, torch.zeros(3, dtype=torch.float64)
    for label in range(40):
        found = PublicPrior.of_class(images, labels, label).mean
        alone = images[labels == label].mean(dim=0)
        errors += torch.stack([(one - means[label]).square().mean() for one in (found, alone, whole)])
    assert float(errors[0]) < 0.5 * float(errors[1:].min())


def test_a_class_prior_is_as_sure_as_it_is_right(classes, rng):
    means, images, labels = classes
    fresh = means + 0.1 * torch.randn(40, 3, 6, 6, generator=rng, dtype=torch.float64)
    apart = [PublicPrior.of_class(images, labels, k).whitened(fresh[k : k + 1]).square().mean() for k in range(40)]
    assert float(torch.stack(apart).mean()) == pytest.approx(1.0, rel=0.15)


def test_of_a_class_without_images_it_is_as_wide_as_that_of_all(classes):
    _, images, labels = classes
    prior, whole = PublicPrior.of_class(images, labels, 99), PublicPrior.of(images)
    assert torch.allclose(prior.mean, whole.mean)
    assert prior.log_volume == pytest.approx(whole.log_volume, abs=0.05 * 108)


@pytest.mark.parametrize("labels", [torch.zeros(300, dtype=torch.long), torch.arange(300)])
def test_one_class_or_a_class_for_each_image_tells_nothing_of_classes(images, labels):
    assert torch.equal(PublicPrior.of_class(images, labels, 0).spectrum, PublicPrior.of(images).spectrum)


def test_its_volume_is_that_of_its_covariance(images):
    prior = PublicPrior.of(images)
    assert prior.log_volume == pytest.approx(-0.5 * float(torch.linalg.slogdet(prior_precision(prior, (3, 6, 6)))[1]))


def test_of_eight_digits_of_a_class_it_is_not_far_too_sure():
    """And one of each other class."""
    found = load_digits()
    images = torch.from_numpy(found.images / 16)[:, None].expand(-1, 3, 8, 8)
    labels, apart = torch.from_numpy(found.target), []
    for label in range(10):
        own = (labels == label).nonzero()[:, 0]
        others = torch.cat([(labels == one).nonzero()[:1, 0] for one in range(10) if one != label])
        chosen = torch.cat([own[:8], others])
        prior = PublicPrior.of_class(images[chosen], labels[chosen], label)
        gray = prior.whitened(images[own[8:]]).square().mean(0)
        apart.append(float(gray.flatten(1).mean(1).max()))  # along the axis of gray: the others hardly vary
    assert sum(apart) / 10 < 2.2


@pytest.mark.parametrize(("slope", "offset"), [(-1.0, 1.0), (0.5, 0.0), (0.5, 0.5)])
def test_what_was_inverted_or_darkened_is_undone(images, slope, offset):
    images = images.clamp(0.0, 1.0)
    seen = slope * images + offset
    assert torch.allclose(PublicPrior.of(images, seen).own_images(seen), images, atol=1e-9)


def test_a_mirror_image_of_eight_bits_is_one(rng):
    images = torch.rand(16, 3, 8, 8, generator=rng)
    seen = images.clone()
    seen[::2] = seen[::2].flip(-1)
    prior = PublicPrior.of(images, (seen * 255).round() / 255)
    assert prior.mirrors is not None
    assert prior.mirrors[:, 2].tolist() == [0.5, 0.5]
