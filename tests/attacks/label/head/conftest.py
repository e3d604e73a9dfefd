"""A batch with its features, and what a linear classifier shares of it."""

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture
def problem():
    return _problem


def _problem(seed=0, classes=6, width=9, labels=(0, 1, 1, 4), smoothing=0.0):
    rng = torch.Generator().manual_seed(seed)
    weights = torch.randn(classes, width + 1, generator=rng, dtype=torch.float64)
    h = torch.cat([torch.randn(len(labels), width, generator=rng, dtype=torch.float64), torch.ones(len(labels), 1)], 1)
    h = h.double()
    targets = F.one_hot(torch.tensor(labels), classes).double() * (1 - smoothing) + smoothing / classes
    errors = (h @ weights.T).softmax(dim=1) - targets
    return weights, h, targets, errors, errors.T @ h / len(labels)
