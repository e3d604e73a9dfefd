"""Places of patches, against a sum over all orders."""

import itertools
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

import fedsim
from attacks.analytic.linear.patches import patchify
from attacks.patch_order import RIDGE, ROUNDS, expected_image, expected_places
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.bounds.public_prior import PublicPrior
from fedsim.models import Architecture, ModelSpec


def by_hand(patches, means, covariances):
    """P(place n holds patch p) by the likelihood of each of n! orders."""
    gaussians = [torch.distributions.MultivariateNormal(m, c) for m, c in zip(means, covariances, strict=True)]
    each = torch.stack([gaussian.log_prob(patches) for gaussian in gaussians])
    n, found = len(patches), torch.zeros(len(patches), len(patches), dtype=torch.float64)
    orders = list(itertools.permutations(range(n)))
    weights = torch.stack([sum(each[place, patch] for place, patch in enumerate(order)) for order in orders]).softmax(0)
    for order, weight in zip(orders, weights, strict=True):
        found[range(n), order] += weight
    return found


def problem(rng, spread, n=5, pixels=3):
    means = spread * torch.randn(n, pixels, generator=rng, dtype=torch.float64)
    root = torch.randn(n, pixels, pixels, generator=rng, dtype=torch.float64)
    covariances = root @ root.mT + 0.1 * torch.eye(pixels, dtype=torch.float64)
    noise = torch.randn(n, pixels, 1, generator=rng, dtype=torch.float64)
    return (means + (root @ noise)[..., 0])[torch.randperm(n, generator=rng)], means, covariances


@pytest.mark.parametrize(("spread", "off"), [(0.0, 0.2), (1.0, 0.2), (30.0, 1e-6)])
def test_places_are_as_likely_as_the_sum_over_all_orders_says(rng, spread, off):
    given = problem(rng, spread)
    found, expected = expected_places(*given), by_hand(*given)
    assert torch.allclose(found.sum(0), torch.ones(5, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(5, dtype=torch.float64), atol=1e-6)
    assert float((found - expected).abs().max()) < off


def test_places_that_are_alike_hold_each_patch_as_often(rng):
    patches = torch.randn(4, 3, generator=rng, dtype=torch.float64)
    same = torch.zeros(4, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    assert torch.allclose(expected_places(patches, *same), torch.full((4, 4), 0.25, dtype=torch.float64))


def observed(image, side, patch):
    model = ModelSpec("vit_tiny_patch16_224", 5, side, patch, kwargs={"depth": 1, "embed_dim": 48}).build(0)
    return fedsim.observe(model, image, [3])


def test_an_image_of_large_patches_whose_places_are_alike_is_its_mean_patch_everywhere(rng):
    """192 numbers a patch: covariances that are off by a tenth of themselves would tell any two places apart."""
    level = torch.ones(3, 32, 32, dtype=torch.float64)
    white, image = PublicPrior(0.5 * level, torch.eye(3).double(), 0.2 * level), torch.rand(1, 3, 32, 32, generator=rng)
    found = expected_image(replace(observed(image, 32, 8), image_prior=white), image)
    patches = patchify(image, (8, 8))
    torch.testing.assert_close(patchify(found, (8, 8)), patches.mean(dim=0).expand(16, -1))


@pytest.mark.parametrize("public", [True, False])
def test_likelihoods_are_those_of_the_whole_covariance(public, rng):
    """A Aᵀ of all pixels, A by unit vectors one by one, and torch's Gaussians."""
    images = torch.rand(9, 3, 16, 16, generator=rng)
    prior = PublicPrior.of(images) if public else GaussianPrior()
    image = prior.draw((1, 3, 16, 16), rng)
    units = prior.coloured(torch.eye(768, dtype=torch.float64).view(-1, 3, 16, 16))
    means = patchify(prior.centre((1, 3, 16, 16)), (8, 8))
    root = torch.stack([patchify(one[None], (8, 8)) for one in units]) - means
    covariances = torch.einsum("knp,knq->npq", root, root) + RIDGE * torch.eye(192)
    patches = patchify(image, (8, 8))
    gaussians = torch.distributions.MultivariateNormal(means[:, None], covariances[:, None])
    likelihood = gaussians.log_prob(patches[None])
    for _ in range(ROUNDS):
        likelihood = likelihood.log_softmax(dim=0).log_softmax(dim=1)
    seen = replace(observed(images[:1], 16, 8), image_prior=prior if public else None)
    torch.testing.assert_close(patchify(expected_image(seen, image), (8, 8)), likelihood.exp() @ patches)


def test_an_image_that_patches_do_not_cover_stays_as_it_was_found(rng):
    image = torch.rand(1, 3, 9, 9, generator=rng)
    seen = fedsim.observe(ModelSpec("vit_nano_patch2_8", 5).build(0), image[..., :8, :8], [3])
    assert torch.equal(expected_image(seen, image), image)


def test_an_image_of_which_the_model_forgets_the_order_is_its_mean_over_orders():
    digits = (torch.from_numpy(load_digits().images / 16).float()[:, None]).expand(-1, 3, -1, -1)
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"depth": 1}), (), 0).build(keep=True)
    seen = fedsim.observe(vit, digits[3:4], [3], defense=["no_pe"], seed=0)
    seen = replace(seen, image_prior=PublicPrior.of(digits[1000:1300]))
    result = fedsim.attack("gauss_newton", seen, steps=3, starts=["mean"], frames=0)
    assert not result.certified
    errors = [float((guess - digits[3:4]).square().mean()) for guess in (result.images, seen.image_prior.mean[None])]
    assert errors[0] < 1.3 * errors[1], "no patch is put where public images never have it"


@pytest.mark.usefixtures("few_last_steps")
def test_an_image_whose_order_rotary_positions_tell_stays_as_it_was_found(monkeypatch):
    def spread(*given):
        pytest.fail("it is no mean over orders")

    monkeypatch.setattr("attacks.optimization.second_order.attack.expected_image", spread)
    small = {"depth": 1, "embed_dim": 16, "num_heads": 2}
    vit = Architecture(ModelSpec("vit_small_patch16_rope_ape_224", 5, 8, 4, kwargs=small), (), 0).build()
    seen = fedsim.observe(vit, torch.rand(1, 3, 8, 8), [3], defense=["no_pe"])
    assert fedsim.attack("gauss_newton", seen, steps=1, starts=["mean"], frames=0).status == "done"
