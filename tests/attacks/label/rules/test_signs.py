"""Labels by the signs of Adam's steps, against what the batch was."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.label import RecoverLabels
from attacks.label.rules.signs import _noise, labels_of_signs, likely_counts
from defenses import GradientClip, GradientNoise
from fedsim.errors import NotApplicable

ADAMW = {"_target_": "torch.optim.AdamW", "lr": 1e-3, "weight_decay": 0.5}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))
    nn.init.normal_(model[3].bias, std=2.0)  # weight decay moves each by as much as a step does
    return model


def observed(model, labels, optimizer=ADAMW, **more):
    images = torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(len(labels)))
    more = {"share": "delta", "local_steps": 1, **more}
    return fedsim.observe(model, images, labels, optimizer=optimizer, **more)


@pytest.mark.parametrize("share", ["delta", "weights"])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("label", range(10))
def test_of_one_example_it_is_the_class_that_rose(model, label, steps, share):
    result = fedsim.attack("labels", observed(model, [label], share=share, local_steps=steps))
    assert result.labels.tolist() == [label]
    assert result.certified


def test_of_several_every_class_that_rose_was_there(model):
    for labels in ([1, 4], [2, 2], [0, 3, 3, 9]):
        seen = observed(model, labels)
        named = RecoverLabels("bias_sign").run(seen, torch.Generator(), torch.device("cpu"))
        assert set(named.labels.tolist()) <= set(labels)
        result = fedsim.attack("labels", seen)
        assert len(result.labels) == len(labels)
        assert result.certified == (len(named.labels) == len(labels))
        assert not result.certified or sorted(labels) == result.labels.tolist()


UNIFORM = torch.full((10,), 0.1, dtype=torch.float64)


def test_where_about_half_of_the_classes_rose_counts_are_moved_from_those_of_public_images():
    change = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    counts = likely_counts(change, change > 0, 64, UNIFORM)
    above = (6.4 + math.sqrt(6.4 * 0.9)) / 64  # of a binomial, which is 0.1375
    assert counts.sum() == 64
    assert counts[:5].tolist() == [9, 9, 9, 9, 8]
    assert abs(float(counts[:5].double().mean()) / 64 - above) < 1 / 64
    assert counts[5:].tolist() == [4] * 5


def test_where_two_of_ten_classes_rose_they_are_all_that_the_client_has():
    change = torch.full((10,), -1.0, dtype=torch.float64)
    change[3], change[7] = 0.5, 1.0
    assert likely_counts(change, change > 0, 64, UNIFORM).nonzero().flatten().tolist() == [3, 7]
    assert likely_counts(change, change > 0, 3, UNIFORM)[[3, 7]].tolist() == [1, 2]


def test_each_class_that_rose_is_there_however_rare_it_is():
    shares = torch.tensor([0.9, 0.04, 0.03, 0.03], dtype=torch.float64)
    change = torch.tensor([1.0, -1.0, 1e-3, 1e-3], dtype=torch.float64)
    assert bool((likely_counts(change, change > 0, 4, shares)[[0, 2, 3]] > 0).all())


def test_public_images_of_the_same_mixture_make_counts_better(model):
    mixture = torch.tensor([0.3, 0.2, *[0.0625] * 8])
    labels = torch.multinomial(mixture, 64, True, generator=torch.Generator().manual_seed(0)).sort().values
    seen = observed(model, labels.tolist())

    def share_right(seen):
        found = fedsim.attack("labels", seen).labels.bincount(minlength=10)
        return float(torch.minimum(found, labels.bincount(minlength=10)).sum()) / 64

    alone, beside = share_right(seen), share_right(seen.with_public_images(torch.rand(64, 1, 8, 8), labels))
    assert beside > alone
    assert beside > 0.8


def test_smoothed_labels_are_never_certain(model):
    result = fedsim.attack("labels", observed(model, [3], label_smoothing=0.1))
    assert not result.certified
    assert "smoothed labels" in result.certificate.reason


def test_more_classes_than_examples_are_nobody_s(model):
    seen = observed(model, [3], {**ADAMW, "weight_decay": 0.0})
    tensors = {name: tensor.neg() for name, tensor in seen.update.tensors.items()}
    result = labels_of_signs(replace(seen, update=replace(seen.update, tensors=tensors)), 1)
    assert "9 classes rose, more than the 1 examples" in result.certificate.reason


@pytest.mark.parametrize("share", ["delta", "weights"])
@pytest.mark.parametrize("noise", [GradientNoise(std=3e-4), GradientNoise(relative_norm=0.3)])
def test_a_rise_that_noise_may_have_made_names_no_class(model, noise, share):
    for seed in range(10):
        seen = observed(model, [3, 3, 5, 5], {**ADAMW, "lr": 2e-3}, share=share, seed=seed, defense=noise)
        labels = RecoverLabels("bias_sign").run(seen, torch.Generator(), torch.device("cpu"))
        assert set(labels.labels.tolist()) <= {3, 5}
        assert "a defense ran on the client" in labels.certificate.reason


def test_noise_is_no_larger_than_a_clip_behind_it_left_it(model):
    clipped = observed(model, [3], defense=[GradientNoise(std=1e-3), GradientClip(5e-3)])
    numbers = sum(tensor.numel() for tensor in clipped.update.tensors.values())
    assert _noise(clipped) == pytest.approx(5e-3 / math.sqrt(numbers))
    relative = observed(model, [3], defense=GradientNoise(relative_norm=0.3))
    assert _noise(replace(relative, summed=4)) == _noise(relative) > 0


def test_where_all_rose_by_less_than_noise_they_are_a_guess(model):
    seen = observed(model, [3], defense=GradientNoise(std=1e-3))
    result = fedsim.attack("labels", seen)
    assert len(result.labels) == 1
    assert not result.certified


def test_coupled_weight_decay_is_refused(model):
    adam = {"_target_": "torch.optim.Adam", "lr": 1e-3, "weight_decay": 0.01}
    result = fedsim.attack("labels", observed(model, [3], adam))
    assert result.reason == "weight decay is a part of Adam's gradients: their signs may be its own"
    assert fedsim.attack("labels", observed(model, [3], {**adam, "weight_decay": 0.0})).labels.tolist() == [3]


def test_a_decay_that_turns_earlier_steps_is_refused(model):
    turning = {**ADAMW, "lr": 1.0, "weight_decay": 2.0}
    with pytest.raises(NotApplicable, match="weight decay turns the sign of what earlier steps moved"):
        labels_of_signs(observed(model, [3], turning, local_steps=2), 1)
    assert labels_of_signs(observed(model, [3], turning), 1).labels.tolist() == [3]


def test_a_head_that_did_not_move_tells_nothing(model):
    with pytest.raises(NotApplicable, match="no class's bias rose"):
        labels_of_signs(observed(model, [3], {**ADAMW, "lr": 0.0}), 1)


def test_rules_that_read_sizes_are_refused(model):
    assert "not a multiple of the gradient" in fedsim.attack("labels_llg", observed(model, [3])).reason
