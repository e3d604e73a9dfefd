"""The label of one example from the gradient of the head's weight alone."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.label.one_example.label import label_of_one, single_label
from attacks.label.one_example.weight_alone import label_by_weight, row_apart
from fedsim.effects import AddsNoise, Clips, Unpublished
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec
from fedsim.update import LocalProtocol

EPS = torch.finfo(torch.float32).eps


def head(classes, label, seed, smoothing=0.0, size=2.0):
    """A head's weight and bias, and the gradient of its weight for features of both signs."""
    rng = torch.Generator().manual_seed(seed)
    weight = (size * torch.randn(classes, 16, generator=rng) / 4).requires_grad_()
    bias = torch.randn(classes, generator=rng)
    features = torch.randn(16, generator=rng)
    target = torch.tensor([label])
    loss = F.cross_entropy(F.linear(features[None], weight, bias), target, label_smoothing=smoothing)
    return weight.detach(), bias, torch.autograd.grad(loss, weight)[0]


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("factor", [1.0, -1.0, 1e-6])
def test_one_row_has_a_sign_of_its_own_whatever_scaled_them(classes, factor):
    summed = 0
    for seed in range(40):
        label = seed % classes
        gradient = head(classes, label, seed)[2]
        assert row_apart(factor * gradient, EPS) == (label, True)
        summed += int((factor * gradient).sum(dim=1).argmin()) == label
    assert summed < 32


def test_rows_of_noise_have_none_and_the_longest_is_named():
    gradient = head(10, 4, 0)[2]
    noisy = gradient + 0.1 * gradient.norm() * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1))
    assert row_apart(noisy, EPS) == (4, False)


def test_two_classes_rows_are_opposite():
    assert not row_apart(head(2, 1, 0)[2], EPS)[1]


@pytest.fixture(scope="module")
def observed(tools):
    """What a server sees of a head whose bias is withheld."""
    base = {c: tools.observe(ModelSpec("vit_nano_patch2_8", c), torch.rand(1, 3, 8, 8), [0]) for c in (2, 3, 10)}

    def make(classes, label, seed, smoothing=0.0, scale=1.0):
        plain = base[classes]
        weight, bias, gradient = head(classes, label, seed, smoothing)
        state = {**plain.global_state, "head.weight": weight, "head.bias": bias}
        update = replace(plain.update, tensors={"head.weight": scale * gradient})
        defenses = () if scale == 1.0 else ({"name": "clip"},)
        protocol = LocalProtocol(1, label_smoothing=smoothing)
        seen = replace(plain, global_state=state, update=update, protocol=protocol, defenses=defenses)
        return replace(seen, recorded_effects=(Clips(1.0, "update"),))

    return make


@pytest.mark.parametrize(("classes", "smoothing"), [(10, 0.0), (10, 0.1), (2, 0.0)])
def test_smoothed_labels_take_the_heads_own_softmax_and_two_classes_are_mostly_open(observed, classes, smoothing):
    right = 0
    for seed in range(20):
        label = seed % classes
        observation = observed(classes, label, seed, smoothing)
        found = single_label(observation)
        assert found is None or found.tolist() == [label]
        right += found is not None
        assert not label_of_one(observation).certificate.certified
    assert right == 20 if classes == 10 else right < 20


def test_attacks_on_images_get_none_where_it_is_open(observed):
    clipped = observed(10, 3, 0, 0.1, scale=0.1)
    assert label_by_weight(clipped)[1]
    assert label_of_one(clipped).labels.tolist() == [3]
    assert single_label(clipped) is None
    assert single_label(observed(10, 3, 0, scale=0.1)).tolist() == [3]
    with pytest.raises(NotApplicable, match="leaves nothing"):
        label_by_weight(replace(clipped, protocol=replace(clipped.protocol, label_smoothing=1.0)))


@pytest.mark.parametrize("effect", [AddsNoise(1.0), Unpublished("own")])
def test_behind_noise_a_row_that_stands_apart_is_no_proof(observed, effect):
    wrong = 0
    for seed in range(40):
        seen = observed(3, seed % 3, seed, scale=0.1)
        gradient = seen.update.tensors["head.weight"]
        noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(seed))
        noisy = replace(seen.update, tensors={"head.weight": gradient + noise})
        label, doubt = label_by_weight(replace(seen, update=noisy, recorded_effects=(effect,)))
        assert "a defense ran on the client" in doubt
        wrong += label != seed % 3
    assert wrong > 0
