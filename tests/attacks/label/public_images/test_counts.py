"""What the gradient of the head's bias bounds counts by, behind noise of a published size."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsim
from attacks.label import RecoverLabels
from attacks.label.public_images import counts
from defenses import GradientNoise


@pytest.fixture(scope="module")
def observe():
    found = load_digits()
    images = torch.from_numpy(found.images / 16.0).float()[:, None]
    labels = torch.from_numpy(found.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def make(defense=()):
        seen = fedsim.observe(model, images[:16], labels[:16], defense=defense)
        return seen.with_public_images(images[300:600], labels[300:600]), labels[:16].bincount(minlength=10)

    return make


@pytest.fixture
def bounds(monkeypatch):
    """The least counts that each fit was given."""
    seen = []

    def fit(moments, weight_grad, bias_grad, least, batch_size, added):
        seen.append(least)
        return counts_fit(moments, weight_grad, bias_grad, least, batch_size, added)

    counts_fit = counts.fit_counts
    monkeypatch.setattr(counts, "fit_counts", fit)
    return seen


def test_noise_of_a_known_size_bounds_no_count(observe, bounds, rng, cpu):
    RecoverLabels("class_moments")(observe()[0], rng, cpu)
    assert int(bounds[0].sum()) > 0
    for seed in range(10):
        torch.manual_seed(seed)
        seen, true = observe(GradientNoise(std=0.2))
        assert len(RecoverLabels("class_moments")(seen, rng, cpu).labels) == 16
        assert bool((bounds[-1] <= true).all())


def test_bounds_above_the_batch_are_none(observe, bounds, rng, cpu):
    seen, _ = observe()
    tensors = {name: 40.0 * tensor if tensor.ndim == 1 else tensor for name, tensor in seen.update.tensors.items()}
    scaled = replace(seen, update=replace(seen.update, tensors=tensors))
    assert len(RecoverLabels("class_moments")(scaled, rng, cpu).labels) == 16
    assert int(bounds[0].sum()) == 0
