"""Right counts certify, wrong ones never do, whatever the search is given."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.label.counts import search
from attacks.label.counts.residual import certify_counts

CLASSES, WIDTH = 10, 32


def head_and_batch(labels, seed, scale=0.1, smoothing=0.0, dtype=torch.float32, classes=CLASSES):
    rng = torch.Generator().manual_seed(seed)
    common = torch.randn(1, WIDTH, generator=rng, dtype=dtype)
    h = F.layer_norm(common + torch.randn(len(labels), WIDTH, generator=rng, dtype=dtype), (WIDTH,))
    weight = scale * torch.randn(classes, WIDTH, generator=rng, dtype=dtype)
    bias = scale * torch.randn(classes, generator=rng, dtype=dtype)
    targets = F.one_hot(torch.tensor(labels), classes).to(dtype) * (1 - smoothing) + smoothing / classes
    errors = F.linear(h, weight, bias).softmax(dim=1) - targets
    return h, weight, bias, errors.T @ h / len(labels), errors.mean(dim=0)


def random_labels(seed, batch):
    return torch.randint(CLASSES, (batch,), generator=torch.Generator().manual_seed(seed)).sort().values.tolist()


def estimate(bias_grad, batch):
    return batch * (1.0 / CLASSES - bias_grad)


def matched_error(found, truth):
    distances = torch.cdist(found, truth.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return float((distances.min(dim=0).values / truth.double().norm(dim=1)).max())


@pytest.mark.parametrize("batch", [1, 2, 4, 6])
@pytest.mark.parametrize("scale", [0.02, 0.15])
def test_right_counts_certify_with_repeats_and_give_the_features(batch, scale):
    for seed in range(5):
        labels = random_labels(seed, batch)
        h, *head, bias_grad = head_and_batch(labels, seed, scale)
        found = certify_counts(*head, bias_grad, estimate(bias_grad, batch), batch)
        assert found.certified, found.reason
        assert found.labels.tolist() == labels
        assert found.counts.tolist() == torch.bincount(torch.tensor(labels), minlength=CLASSES).tolist()
        assert found.residual < 1e-6
        assert found.features.dtype == torch.float64
        assert matched_error(found.features, h) < 1e-2


@pytest.mark.parametrize("labels", [[3], [5, 5], [1, 1, 4, 4], [0, 3, 3, 3]])
@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_what_features_may_be_off_by_is_said(labels, scale):
    """Up to 2 % at scale 1, while the residual is at rounding: counts are proven, features are not."""
    for seed in range(4):
        h, *head, bias_grad = head_and_batch(labels, seed, scale)
        found = certify_counts(*head, bias_grad, estimate(bias_grad, len(labels)), len(labels))
        error = matched_error(found.features, h)
        assert not found.certified or error < found.feature_error < 1000 * error


@pytest.mark.parametrize(("batch", "seeds"), [(1, 2), (2, 2), (4, 2), (7, 1)])
def test_wrong_counts_never_certify(batch, seeds):
    """The true counts are taken for impossible: nothing else may pass."""
    for seed in range(seeds):
        labels = random_labels(seed, batch)
        truth = torch.bincount(torch.tensor(labels), minlength=CLASSES)
        _, *head, bias_grad = head_and_batch(labels, seed, 0.3)
        found = certify_counts(*head, bias_grad, estimate(bias_grad, batch), batch, excluded=truth)
        assert not found.certified
        if found.possible == 0:
            assert "no counts are possible" in found.reason
        else:
            assert found.possible > 64 or found.residual > 1e-4


def test_all_that_are_possible_are_tried():
    labels = [1, 4, 5, 7]
    _, *head, bias_grad = head_and_batch(labels, 5, 0.3)
    found = certify_counts(*head, bias_grad, torch.tensor([1, 0, 0, 1, 0, 1, 0, 1, 0, 0]), 4)
    assert found.certified
    assert found.tried == found.possible > 1
    assert found.labels.tolist() == labels
    assert f"the only ones of {found.possible} possible counts" in found.reason
    assert found.next > 100 * found.tolerance > found.residual
    few = certify_counts(*head, bias_grad, estimate(bias_grad, 4), 4, max_candidates=found.possible - 1)
    assert not few.certified
    assert f"{found.possible} count vectors are possible" in few.reason


def test_a_search_that_has_not_settled_certifies_nothing(monkeypatch):
    _, *head, bias_grad = head_and_batch([1, 4, 5, 7], 5, 0.3)
    real = search.solve_rows

    def gives_up(*arguments):
        solution = real(*arguments)
        return replace(solution, settled=solution.residual < 1e-6)

    monkeypatch.setattr(search, "solve_rows", gives_up)
    found = certify_counts(*head, bias_grad, estimate(bias_grad, 4), 4)
    assert not found.certified
    assert "has not settled" in found.reason


def test_one_image_many_times_is_certified_where_no_other_counts_are_possible():
    """Features that depend on each other leave the equations open, for few counts as for many."""
    h, weight, bias, *_ = head_and_batch([0, 0, 3, 7], 0, 0.05)
    certified = 0
    for factor in (1.0, 10.0):
        for labels in ([2, 2, 2, 2], [2, 2, 5, 8]):
            same = h[:1].expand(4, -1)
            errors = F.linear(same, factor * weight, bias).softmax(dim=1) - F.one_hot(torch.tensor(labels), CLASSES)
            found = certify_counts(
                factor * weight, bias, errors.T @ same / 4, errors.mean(dim=0), torch.zeros(CLASSES), 4
            )
            assert not found.certified or found.labels.tolist() == labels
            assert found.certified == (found.possible == 1)
            certified += found.certified
    assert 0 < certified < 4


def test_smoothing_and_double_precision():
    for options in ({"smoothing": 0.1}, {"dtype": torch.float64}):
        labels = [2, 2, 5, 8]
        _, *head, bias_grad = head_and_batch(labels, 1, **options)
        found = certify_counts(*head, bias_grad, estimate(bias_grad, 4), 4, options.get("smoothing", 0.0))
        assert found.certified, found.reason
        assert found.labels.tolist() == labels


def test_an_example_that_left_no_trace_is_not_certified():
    """A prediction that is certain already adds nothing: its label could be any other that is certain."""
    labels = [0, 1, 2, 3]
    h, weight, bias, *_ = head_and_batch(labels, 0, dtype=torch.float64)
    weight[3] = 60.0 * h[3] / h[3].square().sum()
    errors = F.linear(h, weight, bias).softmax(dim=1) - F.one_hot(torch.tensor(labels), CLASSES)
    assert float(errors[3].norm()) < 1e-6
    found = certify_counts(
        weight, bias, errors.T @ h / 4, errors.mean(dim=0), torch.tensor([1, 1, 1, 1] + [0] * 6), 4, eps=2.0**-23
    )
    assert not found.certified


def test_noise_is_named_at_once():
    labels = [2, 2, 5, 8]
    _, weight, bias, weight_grad, bias_grad = head_and_batch(labels, 1)
    noise = 1e-3 * torch.randn(weight_grad.shape, generator=torch.Generator().manual_seed(0))
    found = certify_counts(weight, bias, weight_grad + noise, bias_grad, estimate(bias_grad, 4), 4)
    assert not found.certified
    assert found.tried == 1
    assert "perturbed" in found.reason
    nothing = certify_counts(weight, bias, 0 * weight_grad, 0 * bias_grad, estimate(bias_grad, 4), 4)
    assert not nothing.certified


def test_same_rng_same_bits():
    labels = [1, 1, 4, 4, 9]
    _, *head, bias_grad = head_and_batch(labels, 3)
    first, second = (
        certify_counts(*head, bias_grad, estimate(bias_grad, 5), 5, rng=torch.Generator().manual_seed(4))
        for _ in range(2)
    )
    assert torch.equal(first.features, second.features)
    assert first.residual == second.residual


@pytest.mark.parametrize("batch", [0, 10, 11])
def test_refuses_batches_that_wrong_counts_could_explain(batch):
    _, *head, bias_grad = head_and_batch([0, 1], 0)
    with pytest.raises(ValueError, match="certifiable are 1 to 9"):
        certify_counts(*head, bias_grad, torch.zeros(CLASSES), batch)
