"""The identities of the head's gradient, against autograd, and what each rule makes of them."""

import pytest
import torch
import torch.nn.functional as F

from attacks.label.rules import basic


def head(labels, classes=10, features=16, smoothing=0.0, scale=0.1, seed=0):
    """Bias and weight gradients of a linear head, the batch's mean softmax, and the features' mean."""
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(len(labels), features, generator=rng, dtype=torch.float64)
    weight = (scale * torch.randn(classes, features, generator=rng, dtype=torch.float64)).requires_grad_()
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    logits = F.linear(h, weight, bias)
    F.cross_entropy(logits, torch.tensor(labels), label_smoothing=smoothing).backward()
    return bias.grad, weight.grad, logits.detach().softmax(1).mean(0)


def random_labels(seed, batch, classes=10):
    return torch.randint(classes, (batch,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_counts_are_exact_with_the_true_mean_softmax(seed, smoothing):
    labels = random_labels(seed, 32)
    bias_grad, _, mean_probs = head(labels, smoothing=smoothing, scale=2.0, seed=seed)
    counts = basic.prior_counts(bias_grad, mean_probs, 32, smoothing)
    expected = torch.bincount(torch.tensor(labels), minlength=10).double()
    torch.testing.assert_close(counts, expected, atol=1e-10, rtol=0)
    assert basic.bias_prior(bias_grad, mean_probs, 32, smoothing).tolist() == sorted(labels)


def test_prior_is_exact_within_its_stated_radius():
    """‖p̄ - p̂‖∞ < 1/(2B) is enough where p̂ is a distribution, and errors sum to zero."""
    rng = torch.Generator().manual_seed(0)
    for seed in range(50):
        labels = random_labels(seed, 16)
        bias_grad, _, mean_probs = head(labels, seed=seed)
        error = torch.rand(10, generator=rng, dtype=torch.float64) - 0.5
        error -= error.mean()
        error *= 0.49 / 16 / error.abs().max()
        assert basic.bias_prior(bias_grad, mean_probs + error, 16).tolist() == sorted(labels)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_sums_to_zero_over_classes(seed):
    bias_grad, weight_grad, _ = head(random_labels(seed, 8), smoothing=0.1 * seed, seed=seed)
    assert abs(float(bias_grad.sum())) < 1e-12
    assert float(weight_grad.sum(dim=0).abs().max()) < 1e-12


@pytest.mark.parametrize("label", range(10))
def test_one_example_is_the_only_negative(label):
    bias_grad, _, _ = head([label], scale=2.0, seed=label)
    assert basic.bias_sign(bias_grad).tolist() == [label]
    assert int(bias_grad.argmin()) == label


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sign_names_no_absent_class_and_misses_none_near_uniform(smoothing):
    for seed in range(20):
        labels = random_labels(seed, 6)
        bias_grad, _, _ = head(labels, smoothing=smoothing, scale=3.0, seed=seed)
        assert set(basic.bias_sign(bias_grad, smoothing).tolist()) <= set(labels)
        bias_grad, _, _ = head(labels, smoothing=0.0, scale=0.01, seed=seed)
        assert set(basic.bias_sign(bias_grad).tolist()) == set(labels)


@pytest.mark.parametrize(
    ("classes", "batch", "wire"),
    [(3, 1, torch.float32), (100, 1, torch.float32), (100, 48, torch.float32), (100, 1, torch.float16)],
)
def test_sign_names_no_absent_class_of_a_rounded_gradient(classes, batch, wire):
    """Absent classes of p = 0 have -ε/C, and rounding may put that beyond -ε/C."""
    rng = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(batch, classes, generator=rng)
    logits[:, classes // 2 :] -= 100.0
    labels = torch.randint(classes // 2, (batch,), generator=rng)
    logits.requires_grad_()
    F.cross_entropy(logits, labels, label_smoothing=0.1).backward()
    bias_grad = logits.grad.sum(dim=0).to(wire).double()
    assert bool((bias_grad[classes // 2 :] < -0.1 / classes).any())
    assert set(basic.bias_sign(bias_grad, 0.1).tolist()) <= set(labels.tolist())


def test_sign_allows_for_a_rounding_that_is_told():
    bias_grad = torch.tensor([-0.3, -1e-5, 0.30001])
    assert basic.bias_sign(bias_grad).tolist() == [0, 1]
    assert basic.bias_sign(bias_grad, rounding=1e-4).tolist() == [0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_corrected_counts_repeats_near_uniform(smoothing):
    right = 0
    for seed in range(40):
        labels = random_labels(seed, 16)
        bias_grad, _, _ = head(labels, smoothing=smoothing, scale=0.01, seed=seed)
        right += basic.bias_corrected(bias_grad, 16, smoothing).tolist() == sorted(labels)
    assert right >= 38


def test_corrected_emits_no_more_than_the_batch():
    bias_grad = torch.tensor([-0.4, -0.3, -0.2, 0.9])
    assert basic.bias_corrected(bias_grad, 2).tolist() == [0, 1]


def test_weight_rules_on_non_negative_features():
    rng = torch.Generator().manual_seed(0)
    for seed in range(10):
        labels = torch.randperm(10, generator=torch.Generator().manual_seed(seed))[:4]
        h = torch.rand(4, 16, generator=rng, dtype=torch.float64)
        weight = (0.01 * torch.randn(10, 16, generator=rng, dtype=torch.float64)).requires_grad_()
        F.cross_entropy(h @ weight.T, labels).backward()
        assert basic.gradinversion(weight.grad, 4).tolist() == sorted(labels.tolist())
        single = weight.detach().clone().requires_grad_()
        F.cross_entropy(h[:1] @ single.T, labels[:1]).backward()
        assert basic.idlg(single.grad).tolist() == labels[:1].tolist()


def test_gradinversion_refuses_more_examples_than_classes():
    with pytest.raises(ValueError, match="repeats some of 10 classes"):
        basic.gradinversion(torch.zeros(10, 4), 11)


@pytest.mark.parametrize(
    ("shares", "total", "counts"),
    [
        ([1.4, 1.4, 1.2], 4, [2, 1, 1]),
        ([0.6, 2.5, 0.9], 4, [1, 2, 1]),
        ([-3.0, 5.0, 2.0], 4, [0, 3, 1]),
        ([0.0, 0.0, 0.0], 2, [1, 1, 0]),
    ],
)
def test_largest_remainder(shares, total, counts):
    found = basic.largest_remainder(torch.tensor(shares), total)
    assert int(found.sum()) == total
    assert found.tolist() == counts


def test_two_averaged_heads_add_up_to_one():
    """Distilled DeiT: the gradient of each head's bias is half that of a single head."""
    rng = torch.Generator().manual_seed(0)
    h1, h2 = (torch.randn(6, 8, generator=rng, dtype=torch.float64) for _ in range(2))
    first, second = torch.nn.Linear(8, 5).double(), torch.nn.Linear(8, 5).double()
    logits = (first(h1) + second(h2)) / 2
    labels = torch.tensor([0, 1, 1, 3, 3, 3])
    F.cross_entropy(logits, labels).backward()
    expected = logits.detach().softmax(1).mean(0) - torch.bincount(labels, minlength=5) / 6
    gradient = {"a": first.bias.grad, "b": second.bias.grad}
    torch.testing.assert_close(basic.head_gradient(gradient, ("a", "b")), expected)
    torch.testing.assert_close(basic.head_gradient({"b": second.bias.grad}, ("a", "b")), expected)
    assert basic.head_gradient({}, ("a", "b")) is None


def test_labels_smoothed_away_are_refused():
    with pytest.raises(ValueError, match="leaves nothing"):
        basic.prior_counts(torch.zeros(3), torch.ones(3) / 3, 2, 1.0)


def one_by_one(shares, total):
    """Largest remainder as its definition has it, in steps of one."""
    shares = shares.double().clamp(min=0.0)
    counts = shares.floor().long()
    while int(counts.sum()) < total:
        counts[(shares - counts).argmax()] += 1
    while int(counts.sum()) > total:
        counts[torch.where(counts > 0, shares - counts, torch.inf).argmin()] -= 1
    return counts


def test_largest_remainder_is_what_steps_of_one_come_to():
    rng = torch.Generator().manual_seed(0)
    for trial in range(300):
        classes, total = (int(torch.randint(1, high, (), generator=rng)) for high in (12, 20))
        scale = (0.1, 1.0, 10.0, 100.0)[trial % 4]
        shares = scale * torch.randn(classes, generator=rng, dtype=torch.float64)
        if trial % 3 == 0:
            shares = (4.0 * shares).round() / 4.0  # ties
        assert basic.largest_remainder(shares, total).tolist() == one_by_one(shares, total).tolist()


@pytest.mark.parametrize("large", [1e12, 1e300])
def test_a_share_of_any_size_takes_no_longer(large):
    shares = torch.tensor([0.4, large, 0.0, large], dtype=torch.float64)
    assert basic.largest_remainder(shares, 4).tolist() == [0, 2, 0, 2]
    assert basic.largest_remainder(-shares, 4).tolist() == [1, 1, 1, 1]
