"""The moments of public images, and the counts that they make likeliest."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.label.counts.possible import least_counts
from attacks.label.public_images import moments as m
from attacks.label.public_images.drift import drifted_counts, images_of
from attacks.label.rules.basic import largest_remainder, prior_counts

CLASSES, WIDTH = 4, 6


@pytest.fixture
def head(rng):
    weight = 0.8 * torch.randn(CLASSES, WIDTH, generator=rng, dtype=torch.float64)
    return weight, 0.3 * torch.randn(CLASSES, generator=rng, dtype=torch.float64)


def population(count, rng, apart=1.0, centres_seed=5):
    """Features around a centre for each class, and labels."""
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(centres_seed), dtype=torch.float64)
    labels = torch.arange(count) % CLASSES
    noise = torch.randn(count, WIDTH, generator=rng, dtype=torch.float64)
    return apart * centres[labels] + 0.7 * noise, labels


def gradient(head, features, labels, smoothing=0.0):
    """Of the mean loss, by autograd."""
    linear = nn.Linear(WIDTH, CLASSES).double()
    with torch.no_grad():
        linear.weight.copy_(head[0])
        linear.bias.copy_(head[1])
    loss = F.cross_entropy(linear(features), labels, label_smoothing=smoothing)
    return torch.autograd.grad(loss, [linear.weight, linear.bias])


def no_least():
    return torch.zeros(CLASSES, dtype=torch.long)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_shares_are_the_examples_gradients(head, rng, smoothing):
    features, _ = population(5, rng)
    for label in range(CLASSES):
        found = m.shares(*head, features, label, smoothing).view(5, CLASSES, WIDTH + 1)
        for one, feature in zip(found, features, strict=True):
            weight, bias = gradient(head, feature[None], torch.tensor([label]), smoothing)
            torch.testing.assert_close(one[:, :-1], weight)
            torch.testing.assert_close(one[:, -1], bias)


def test_moments_are_those_of_drawn_batches(head, rng):
    """Monte Carlo: the mean and the variance of B·g over batches that are drawn from the same images."""
    features, labels = population(400, rng)
    found = m.class_moments(*head, features, F.one_hot(labels, CLASSES).double())
    counts = torch.tensor([3, 0, 2, 1])
    reads = []
    for _ in range(1000):
        chosen = images_of(counts, labels, rng)
        reads.append(6 * found.read(*gradient(head, features[chosen], labels[chosen])))
    drawn = torch.stack(reads)
    mean = counts.double() @ found.means
    pooled = found.covariances.mean(dim=0)
    own = ((100 + m.POOLED) * found.covariances - m.POOLED * pooled) / 100
    variance = torch.einsum("c,cii->i", counts.double(), own)
    assert ((drawn.mean(0) - mean).abs() < 4.5 * (variance / 1000).sqrt() + 1e-9).all()
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.3, atol=1e-9)


def test_counts_are_exact_where_the_moments_are_the_batchs_own(head, rng):
    """One feature a class: the scatter is zero, and every count follows."""
    centres = 2.0 * torch.randn(CLASSES, WIDTH, generator=rng, dtype=torch.float64)
    labels = torch.arange(CLASSES).repeat(3)
    found = m.class_moments(*head, centres[labels], F.one_hot(labels, CLASSES).double())
    for counts in ([5, 0, 2, 1], [0, 0, 0, 8], [2, 2, 2, 2]):
        batch = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(counts))
        fit = m.fit_counts(found, *gradient(head, centres[batch], batch), no_least(), 8)
        assert fit.counts.tolist() == counts
        assert fit.misfit < 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_more_counts_are_right_than_by_the_mean_softmax_alone(head, rng, smoothing):
    features, labels = population(2000, rng)
    probs = (features @ head[0].T + head[1]).softmax(dim=1)
    found = m.class_moments(*head, features, F.one_hot(labels, CLASSES).double(), smoothing)
    right, before = 0, 0
    for _ in range(40):
        new, truth = population(32, rng)
        chosen = torch.randint(32, (16,), generator=rng)
        counts = torch.bincount(truth[chosen], minlength=CLASSES)
        weight, bias = gradient(head, new[chosen], truth[chosen], smoothing)
        right += torch.equal(m.fit_counts(found, weight, bias, least_counts(bias, 16, smoothing), 16).counts, counts)
        before += torch.equal(largest_remainder(prior_counts(bias, probs.mean(0), 16, smoothing), 16), counts)
    assert right >= before + 10
    assert right >= 25


def test_unlabelled_images_of_a_calibrated_model_serve_as_well(rng):
    """Classes are drawn from the softmax itself: its own answers then weigh each class's images rightly."""
    head = 1.5 * torch.randn(CLASSES, WIDTH, generator=rng, dtype=torch.float64), torch.zeros(CLASSES).double()
    features = torch.randn(20000, WIDTH, generator=rng, dtype=torch.float64)
    probs = (features @ head[0].T).softmax(dim=1)
    labels = torch.multinomial(probs, 1, generator=rng)[:, 0]
    given = m.class_moments(*head, features, F.one_hot(labels, CLASSES).double())
    own = m.class_moments(*head, features, probs)
    means = [one.means.view(CLASSES, CLASSES, -1)[:, :, -1] for one in (given, own)]
    torch.testing.assert_close(*means, rtol=0.0, atol=0.03)


def test_noise_that_is_known_leaves_the_means_and_what_is_believed_beforehand(head, rng):
    """Brute force over all counts: with a covariance of noise alone it is ridge regression on the class means."""
    features, labels = population(400, rng)
    found = m.class_moments(*head, features, F.one_hot(labels, CLASSES).double())
    weight, bias = gradient(head, features[:8], labels[:8])
    added = 100.0 * torch.eye(found.means.shape[1], dtype=torch.float64)
    fit = m.fit_counts(found, weight, bias, no_least(), 8, added)
    read = 8 * found.read(weight, bias)
    every = torch.cartesian_prod(*[torch.arange(9)] * CLASSES)
    every = every[every.sum(dim=1) == 8]
    variance = 8 * 3 * 12 / (16 * 5)
    cost = (every.double() @ found.means - read).square().sum(dim=1) / 100.0
    best = every[(cost + (every - 2.0).square().sum(dim=1) / variance).argmin()]
    assert fit.counts.tolist() == best.tolist()


def test_a_class_without_images_is_refused(head, rng):
    features, labels = population(8, rng)
    belongs = F.one_hot(labels.clamp(max=2), CLASSES).double()
    with pytest.raises(ValueError, match="two images"):
        m.class_moments(*head, features, belongs)


def test_a_drift_that_is_always_the_same_is_taken_off(head, rng):
    features, labels = population(400, rng)
    found = m.class_moments(*head, features, F.one_hot(labels, CLASSES).double())
    weight, bias = gradient(head, features[:8], labels[:8])
    moved = torch.randn(weight.shape, generator=rng).double(), torch.randn(bias.shape, generator=rng).double()
    both = weight + moved[0], bias + moved[1]
    believed = torch.tensor([8, 0, 0, 0])
    fit = drifted_counts(found, both, no_least(), believed, labels, lambda chosen: moved, rng)
    assert fit.counts.tolist() == m.fit_counts(found, weight, bias, no_least(), 8).counts.tolist() == [2, 2, 2, 2]


def test_images_have_the_counts_that_are_asked_for(rng):
    labels = torch.tensor([0, 1, 1, 2, 3, 1])
    chosen = images_of(torch.tensor([0, 3, 2, 1]), labels, rng)
    assert labels[chosen].tolist() == [1, 1, 1, 2, 2, 3]
    assert len(set(chosen[:3].tolist())) == 3
