"""Each published rule where its assumptions hold exactly, and what becomes of it where they do not."""

import pytest
import torch
import torch.nn.functional as F

from attacks.label.rules import basic, counting
from attacks.label.rules.counting import LabelShare


def gradients(h, labels, weight, bias, smoothing=0.0):
    """∂L/∂W and ∂L/∂b by autograd."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    F.cross_entropy(F.linear(h, weight, bias), torch.tensor(labels), label_smoothing=smoothing).backward()
    return weight.grad, bias.grad


def head(classes=10, width=16, scale=0.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(classes, width, generator=rng, dtype=torch.float64)
    return weight, scale * torch.randn(classes, generator=rng, dtype=torch.float64)


def positive(count, width=16, seed=0):
    """Non-negative features with the sum 3."""
    h = torch.rand(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 3.0 * h / h.sum(dim=1, keepdim=True)


LABELS = [1, 1, 1, 4, 4, 6, 9, 9]


def test_impact_is_exact_for_a_uniform_softmax_and_equal_sums():
    """Σ_{g<0} g = -s (1 - 1/C)·(labels named)…: with each present class negative, impact·B = -s (1 - K/C)(1 + 1/C)."""
    weight, bias = head()
    weight_grad, bias_grad = gradients(positive(8), LABELS, weight, bias)
    share = counting.impact_of_scores(weight_grad.sum(dim=1), 8)
    present = len(set(LABELS))
    assert share.impact == pytest.approx(-3.0 / 8 * (1 - present / 10) * 1.1)
    assert counting.impact_of_scores(bias_grad, 8).impact == pytest.approx(-1 / 8 * (1 - present / 10) * 1.1)


@pytest.mark.parametrize("form", ["weight", "bias"])
def test_llg_of_a_reference_is_exact_for_a_uniform_softmax(form):
    weight, bias = head()
    weight_grad, bias_grad = gradients(positive(8), LABELS, weight, bias)
    reference = positive(5, seed=1)
    sums = reference.sum(dim=1) if form == "weight" else torch.ones(5, dtype=torch.float64)
    scores = weight_grad.sum(dim=1) if form == "weight" else bias_grad
    share = counting.share_of_reference(F.linear(reference, weight, bias).softmax(dim=1), sums, 8)
    assert share.impact == pytest.approx(-float(sums[0]) / 8 * (1 - 1 / 100))
    torch.testing.assert_close(share.offset, torch.full((10,), float(sums[0]) / 10, dtype=torch.float64))
    assert counting.llg(scores, 8, share).tolist() == LABELS


def test_impact_is_the_mean_over_reference_batches_of_one_label():
    """The paper's loop: a batch of each class's label alone, its own score over B, times 1 + 1/C."""
    weight, bias = head(scale=0.3)
    reference = positive(6, seed=2)
    probs = F.linear(reference, weight, bias).softmax(dim=1)
    own = [gradients(reference, [c] * 6, weight, bias)[0].sum(dim=1)[c] for c in range(10)]
    share = counting.share_of_reference(probs, reference.sum(dim=1), 4)
    assert share.impact == pytest.approx(float(torch.stack(own).mean()) / 4 * 1.1)
    without = gradients(reference, [0] * 6, weight, bias)[0].sum(dim=1)
    torch.testing.assert_close(share.offset[1:], without[1:])


def test_llg_emits_no_more_than_the_batch():
    share = LabelShare(-0.1, torch.zeros(4, dtype=torch.float64))
    assert counting.llg(torch.tensor([-0.4, -0.3, -0.2, 0.9]), 2, share).tolist() == [0, 1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_zero_shot_is_exact_with_equal_sums_and_the_true_softmax(smoothing):
    weight, bias = head(scale=1.0)
    h = positive(8)
    weight_grad, _ = gradients(h, LABELS, weight, bias, smoothing)
    mean_probs = F.linear(h, weight, bias).softmax(dim=1).mean(dim=0)
    counts = counting.zero_shot_counts(weight_grad, mean_probs, 3.0, 8, smoothing)
    torch.testing.assert_close(counts, torch.bincount(torch.tensor(LABELS), minlength=10).double())
    assert basic.labels_of(counts, 8).tolist() == LABELS


def test_zero_shot_fails_on_features_that_sum_to_nothing():
    weight, bias = head(scale=0.02)
    h = F.layer_norm(torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64), (16,))
    weight_grad, bias_grad = gradients(h, LABELS, weight, bias)
    mean_probs = F.linear(h, weight, bias).softmax(dim=1).mean(dim=0)
    counts = counting.zero_shot_counts(weight_grad, mean_probs, float(h.sum(dim=1).mean()), 8)
    assert basic.labels_of(counts, 8).tolist() != LABELS
    assert basic.bias_prior(bias_grad, mean_probs, 8).tolist() == LABELS


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_ilrg_is_exact_where_all_examples_share_a_feature(scale, smoothing):
    weight, bias = head(scale=scale)
    h = positive(1).expand(8, -1)
    weight_grad, bias_grad = gradients(h, LABELS, weight, bias, smoothing)
    counts = counting.ilrg_counts(weight, bias, weight_grad, bias_grad, 8, smoothing)
    expected = torch.bincount(torch.tensor(LABELS), minlength=10).double()
    torch.testing.assert_close(counts, expected, atol=1e-8, rtol=0)
    assert basic.labels_of(counts, 8).tolist() == LABELS


def test_ilrg_counts_with_many_classes():
    right = 0
    for seed in range(20):
        weight, bias = head(classes=100, width=32, scale=0.05, seed=seed)
        h = positive(16, 32, seed) * 10
        labels = torch.randint(12, (16,), generator=torch.Generator().manual_seed(seed)).sort().values.tolist()
        counts = counting.ilrg_counts(weight, bias, *gradients(h, labels, weight, bias), 16)
        right += basic.labels_of(counts, 16).tolist() == labels
    assert right >= 18


def test_zero_gradients_give_finite_counts():
    weight, bias = head(scale=1.0)
    zeros = torch.zeros_like(weight), torch.zeros_like(bias)
    assert bool(counting.ilrg_counts(weight, bias, *zeros, 8).isfinite().all())


def test_refusals():
    with pytest.raises(ValueError, match="sum to zero"):
        counting.zero_shot_counts(torch.ones(3, 4), torch.ones(3) / 3, 0.0, 2)
    with pytest.raises(ValueError, match="leaves nothing"):
        counting.zero_shot_counts(torch.ones(3, 4), torch.ones(3) / 3, 1.0, 2, 1.0)


@pytest.mark.parametrize("reference", [False, True])
def test_llg_takes_label_smoothing_for_what_it_is(reference):
    """Absent classes of hardly any probability have negative scores then, and are no labels."""
    weight, bias = head(scale=3.0)
    features, labels, smoothing = positive(8, seed=4), [2, 2, 2, 2, 5, 5, 7, 7], 0.2
    logits = F.linear(features, weight, bias).requires_grad_()
    F.cross_entropy(logits, torch.tensor(labels), label_smoothing=smoothing).backward()
    scores = (logits.grad.T @ features).sum(dim=1)
    assert int((scores < 0).sum()) > 3
    probs = logits.detach().softmax(dim=1)
    share = counting.share_of_reference(probs, features.sum(dim=1), 8, smoothing)
    if not reference:
        share = counting.impact_of_scores(scores, 8, smoothing)
    found = counting.llg(scores, 8, share).tolist()
    assert set(found) == {2, 5, 7}
    assert not reference or found == labels
