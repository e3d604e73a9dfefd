"""Heads trained to an accuracy of 1.0: many counts are possible there, and several may explain the gradient."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from attacks.label.counts.residual import certify_counts

CLASSES, BATCH, IMAGES = 10, 8, 200


def one_label(images, rng):
    return torch.randint(IMAGES, (BATCH,), generator=rng), torch.randint(CLASSES, (1,), generator=rng).repeat(BATCH)


def random_labels(images, rng):
    return torch.randint(IMAGES, (BATCH,), generator=rng), torch.randint(CLASSES, (BATCH,), generator=rng)


def one_class(images, rng):
    of_class = (images == torch.randint(CLASSES, (1,), generator=rng)).nonzero().flatten()
    return of_class[torch.randint(len(of_class), (BATCH,), generator=rng)], images[of_class[:1]].repeat(BATCH)


def burst(images, rng):
    return torch.randint(IMAGES, (1,), generator=rng).repeat(BATCH), one_label(images, rng)[1]


@pytest.fixture(scope="module")
def trained():
    """Features, weight, bias and labels of digits that an MLP knows by heart."""
    data = load_digits()
    images, labels = torch.tensor(data.data[:IMAGES] / 16.0).float(), torch.tensor(data.target[:IMAGES])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        head = nn.Linear(64, CLASSES)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(head(body(images)), labels).backward()
        optimizer.step()
    with torch.no_grad():
        assert bool((head(body(images)).argmax(dim=1) == labels).all())
        return body(images), head.weight.clone(), head.bias.clone(), labels


@pytest.mark.parametrize("draw", [one_label, random_labels, one_class, burst])
@pytest.mark.parametrize("times", [1.0, 4.0])
def test_no_wrong_counts_are_certified(trained, draw, times):
    features, weight, bias, known = trained
    weight, bias = times * weight, times * bias
    rng = torch.Generator().manual_seed(3)
    certified = 0
    for _ in range(6):
        chosen, labels = draw(known, rng)
        labels = labels.sort().values
        h = features[chosen]
        errors = F.linear(h, weight, bias).softmax(dim=1) - F.one_hot(labels, CLASSES)
        gradients = errors.T @ h / BATCH, errors.mean(dim=0)
        start = BATCH * (F.linear(features, weight, bias).softmax(dim=1).mean(dim=0) - gradients[1])
        found = certify_counts(weight, bias, *gradients, start, BATCH, rng=rng)
        assert not found.certified or torch.equal(found.labels, labels), found.reason
        assert not found.certified or found.residual < found.tolerance
        certified += found.certified
    assert certified > 0 or draw in (random_labels, one_class)


@pytest.mark.parametrize("batch", [2, 4])
def test_labels_that_the_model_knows_by_heart_are_named_alone(trained, batch):
    """By bias alone 3 to 715 counts are possible. Without the true ones none is named."""
    features, weight, bias, known = trained
    rng = torch.Generator().manual_seed(1)
    right = 0
    for _ in range(3):
        chosen = torch.randint(IMAGES, (batch,), generator=rng)
        labels, h = known[chosen], features[chosen]
        errors = F.linear(h, weight, bias).softmax(dim=1) - F.one_hot(labels, CLASSES)
        gradients, truth = (errors.T @ h / batch, errors.mean(dim=0)), torch.bincount(labels, minlength=CLASSES)
        start = torch.full((CLASSES,), batch / CLASSES)
        found = certify_counts(weight, bias, *gradients, start, batch)
        assert not found.alone or torch.equal(found.counts, truth)
        right += torch.equal(found.counts, truth)
        other = certify_counts(weight, bias, *gradients, start, batch, excluded=truth)
        assert not other.alone
        assert not other.certified
    assert right >= 2
