"""The errors of each image's logits against those that a batch was made with."""

import pytest
import torch
import torch.nn.functional as F

from attacks.label.head.errors import MAX_BATCH_SIZE, head_errors

CLASSES, WIDTH = 10, 64


def batch(labels, smoothing=0.0, seed=0, classes=CLASSES, sure=0.0):
    """Weights, errors of predictions, and their mean gradients, rounded to float32; the surer the more right."""
    rng = torch.Generator().manual_seed(seed)
    weight, bias, features = (
        torch.randn(size, generator=rng, dtype=torch.float64)
        for size in ((classes, WIDTH), classes, (len(labels), WIDTH))
    )
    weight *= 0.3
    features = features + sure * weight[labels]
    wanted = F.one_hot(torch.tensor(labels), classes) * (1 - smoothing) + smoothing / classes
    errors = (features @ weight.T + bias).softmax(dim=1) - wanted
    return (weight, bias), errors, ((errors.T @ features / len(labels)).float(), errors.mean(0).float())


def solved(weights, gradients, labels, smoothing=0.0):
    rng = torch.Generator().manual_seed(0)
    found = head_errors(weights, gradients, torch.tensor(labels), smoothing, torch.finfo(torch.float32).eps, rng)
    return None if found is None else found[0]


@pytest.mark.parametrize("labels", [[3], [7, 2], [4, 4], [9, 0, 5, 0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_they_come_back_in_the_order_of_labels(labels, smoothing):
    weights, errors, gradients = batch(labels, smoothing)
    found = solved(weights, gradients, labels, smoothing)
    for place, label in enumerate(labels):
        alike = [errors[other] for other in range(len(labels)) if labels[other] == label]
        assert min(float((found[place] - one).abs().max()) for one in alike) < 1e-4
    assert float((found.mean(0) - gradients[1]).abs().max()) < 1e-5


@pytest.mark.parametrize("labels", [[1, 2, 3, 4], [5, 0, 5, 7], [8, 6, 4, 2, 0]])
def test_of_a_model_that_is_sure_of_the_labels_too(labels):
    """Each error is a hundredth or so: hardly any start that takes examples for alike comes to them."""
    weights, errors, gradients = batch(labels, sure=1.5)
    assert 1e-4 < float(errors.norm(dim=1).median()) < 0.2
    found = solved(weights, gradients, labels)
    for place, label in enumerate(labels):
        alike = [errors[other] for other in range(len(labels)) if labels[other] == label]
        assert min(float((found[place] - one).norm() / one.norm()) for one in alike) < 1e-2


def test_labels_that_are_not_the_batchs_have_none():
    weights, _, gradients = batch([7, 2])
    assert solved(weights, gradients, [7, 3]) is None


def test_as_many_images_as_classes_have_none():
    labels = list(range(4))
    weights, _, gradients = batch(labels, classes=4)
    assert solved(weights, gradients, labels) is None


def test_nor_have_large_batches():
    labels = list(range(MAX_BATCH_SIZE + 1))
    weights, _, gradients = batch(labels, classes=40)
    assert solved(weights, gradients, labels) is None
