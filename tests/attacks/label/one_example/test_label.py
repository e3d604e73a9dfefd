"""The label of one example, from heads that are sure of it and heads that are not."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.label import RecoverLabels
from attacks.label.one_example.label import errors_of_labels, head_input, label_of_one, single_label
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec
from fedsim.update import LocalProtocol, Update

SMOOTHING = 0.1


def gradients(weight, bias, features, label, smoothing):
    """∂L/∂W and ∂L/∂b of one example, by autograd."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    loss = F.cross_entropy(F.linear(features[None], weight, bias), torch.tensor([label]), label_smoothing=smoothing)
    return torch.autograd.grad(loss, (weight, bias))


@pytest.fixture(scope="module")
def observed(tools):
    """`observed(logits | None, label, …)`: what a server sees of a head that says `logits` of one example."""
    base = {c: tools.observe(ModelSpec("vit_nano_patch2_8", c), torch.rand(1, 3, 8, 8), [0]) for c in (2, 3, 6, 10)}

    def make(logits, label, smoothing=SMOOTHING, lr=None, scale=1.0, weight_decay=0.0, wire=None, seed=0):
        rng = torch.Generator().manual_seed(seed)
        plain = base[len(logits)]
        weight = torch.randn(plain.global_state["head.weight"].shape, generator=rng) / 8
        features = torch.randn(weight.shape[1], generator=rng)
        bias = 0.1 * torch.randn(len(logits), generator=rng)
        weight += torch.outer(torch.as_tensor(logits) - weight @ features - bias, features) / features.square().sum()
        state = {**plain.global_state, "head.weight": weight, "head.bias": bias}
        found = gradients(weight, bias, features, label, smoothing)
        shared = {name: scale * g for name, g in zip(("head.weight", "head.bias"), found, strict=True)}
        if wire is not None:
            shared = {name: g.to(wire).float() for name, g in shared.items()}
        protocol = LocalProtocol(1, label_smoothing=smoothing, weight_decay=weight_decay)
        if lr is not None:
            steps = {name: state[name] - lr * (g + weight_decay * state[name]) for name, g in shared.items()}
            shared = {name: step - state[name] for name, step in steps.items()}
            protocol = replace(protocol, optimizer="sgd", lrs=(lr,))
        update = Update(shared, "gradient" if lr is None else "delta", 1)
        defenses = () if scale == 1.0 else ({"name": "clip"},)
        return replace(plain, global_state=state, update=update, protocol=protocol, defenses=defenses)

    return make


def sure(seed, classes=10, size=8.0):
    """Logits N(0, size²), and the class on top."""
    logits = size * torch.randn(classes, generator=torch.Generator().manual_seed(seed))
    return logits, int(logits.argmax())


@pytest.mark.parametrize(("logits", "label"), [([10.0, 0.0, -15.0], 0), ([8.0, 0.0, -1.0, -2.0, -16.0, 0.0], 0)])
def test_rounding_makes_no_absent_class_a_label(observed, logits, label):
    """float32(ε/C) lies beyond ε/C for these numbers of classes."""
    observation = observed(logits, label)
    assert bool((observation.gradient["head.bias"] < -SMOOTHING / len(logits)).any())
    found = label_of_one(observation)
    assert found.labels.tolist() == [label]
    assert found.certificate.values["negatives"] == 0


def test_a_head_surer_than_its_smoothed_label_is_read_by_its_weight(observed, rng, cpu):
    overshot = 0
    for seed in range(60):
        logits, label = sure(seed)
        observation = observed(logits, label, seed=seed)
        found = RecoverLabels()(observation, rng, cpu)
        assert found.labels.tolist() == [label]
        assert found.certificate.certified, found.certificate.reason
        overshot += int(observation.gradient["head.bias"].argmin()) != label
    assert overshot > 20


@pytest.mark.parametrize(
    "settings", [{"scale": 0.01}, {"lr": 0.1}, {"wire": torch.float16}, {"lr": 1e-4, "weight_decay": 0.01}]
)
def test_clipping_deltas_and_coarse_wires_mislead_no_certificate(observed, settings):
    certified = 0
    for seed in range(40):
        logits, label = sure(seed)
        named = label if seed % 2 else (label + 1) % 10
        found = label_of_one(observed(logits, named, seed=seed, **settings))
        assert found.labels.tolist() == [named]
        certified += found.certificate.certified
    assert certified >= 20


@pytest.mark.parametrize("noise", [1e-5, 1e-4, 1e-3, 1e-2])
def test_noise_certifies_no_other_label(observed, noise):
    rng = torch.Generator().manual_seed(0)
    for seed in range(40):
        logits, label = sure(seed)
        observation = observed(logits, label, seed=seed)
        tensors = {
            n: t + noise * t.norm() * torch.randn(t.shape, generator=rng) / t.numel() ** 0.5
            for n, t in observation.update.tensors.items()
        }
        found = label_of_one(replace(observation, update=replace(observation.update, tensors=tensors)))
        assert not found.certificate.certified or found.labels.tolist() == [label]


def test_two_classes_differ_in_the_gradients_length_alone(observed):
    for label in (0, 1):
        observation = observed([6.0 - 12.0 * label, 0.0], label)
        found = label_of_one(observation)
        assert found.labels.tolist() == [label]
        assert not found.certificate.certified
        assert found.certificate.values["next"] < 1e-3


def test_without_the_weight_the_largest_is_guessed_and_not_certified(observed):
    logits, label = [9.0, 0.0, -1.0, -2.0, -3.0, 1.0], 0
    observation = observed(logits, label)
    bias_only = {"head.bias": observation.update.tensors["head.bias"]}
    withheld = replace(
        observation, update=replace(observation.update, tensors=bias_only, withheld={"head.weight": "w"})
    )
    found = label_of_one(withheld)
    assert found.labels.tolist() == [label]
    assert not found.certificate.certified
    assert "alone does not tell" in found.certificate.reason
    assert "withheld by w" in found.certificate.reason


def test_hard_labels_need_no_weight(observed):
    logits, label = sure(4, size=2.0)
    observation = observed(logits, label, smoothing=0.0)
    bias_only = {"head.bias": observation.update.tensors["head.bias"]}
    found = label_of_one(replace(observation, update=replace(observation.update, tensors=bias_only)))
    assert found.labels.tolist() == [label]
    assert found.certificate.certified


def test_a_zero_gradient_tells_nothing(observed):
    observation = observed(*sure(5))
    zeros = {name: torch.zeros_like(t) for name, t in observation.update.tensors.items()}
    empty = replace(observation, update=replace(observation.update, tensors=zeros))
    with pytest.raises(NotApplicable, match="gradient of zero"):
        label_of_one(empty)
    assert single_label(empty) is None


def test_the_head_is_read_against_autograd():
    rng = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(5, 7, generator=rng).double(), torch.randn(5, generator=rng).double()
    features = torch.randn(7, generator=rng).double()
    weight_grad, bias_grad = gradients(weight, bias, features, 2, 0.2)
    found, left = head_input(0.3 * weight_grad, 0.3 * bias_grad)
    torch.testing.assert_close(found, features)
    assert left < 1e-12
    torch.testing.assert_close(errors_of_labels(weight @ features + bias, 0.2)[2], bias_grad)
    assert head_input(torch.randn(5, 7, generator=rng).double(), bias_grad)[1] > 0.1


def test_attacks_on_pictures_get_the_label_or_none(observed):
    observation = observed(*sure(1))
    assert single_label(observation).tolist() == [sure(1)[1]]
    smoothed = replace(observation, protocol=replace(observation.protocol, label_smoothing=1.0))
    assert single_label(smoothed) is None
    with pytest.raises(NotApplicable, match="leaves nothing"):
        label_of_one(smoothed)
    assert single_label(replace(observation, roles=replace(observation.roles, head_biases=()))) is None


def test_what_a_defense_did_to_the_bias_alone_is_seen_by_the_replayed_head(observed):
    """Scaled as a whole the head still says the same; its bias and weight each by a factor of their own do not."""
    observation = observed(*sure(4, size=2.0), smoothing=0.0)
    tensors = observation.update.tensors
    for factor, certified in ((1.0, True), (0.3, False)):
        changed = {name: (0.5 * factor if name == "head.bias" else 0.5) * tensor for name, tensor in tensors.items()}
        seen = replace(observation, update=replace(observation.update, tensors=changed), defenses=({"name": "any"},))
        found = label_of_one(seen)
        assert found.labels.tolist() == [sure(4)[1]]
        assert found.certificate.certified == certified, found.certificate.reason
    undeclared = replace(
        observation, update=replace(observation.update, tensors={n: 0.5 * t for n, t in tensors.items()})
    )
    assert "misses its gradient" in label_of_one(undeclared).certificate.reason


def test_a_climbed_loss_certifies_no_wrong_label(observed):
    """Signs turn, and of two classes the other one looks like the label."""
    for classes in (2, 10):
        for seed in range(10):
            logits, label = sure(seed, classes, size=1.0)
            found = label_of_one(observed(logits, label, smoothing=0.0, scale=-1.0, seed=seed))
            assert not found.certificate.certified


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"weight_decay": 1e-6}, "weight decay"),
        ({"momentum": 0.9, "dampening": 1.2}, "counts negatively"),
        ({"proximal_mu": 300.0}, "counts negatively"),
        ({"momentum": 0.9}, ""),
    ],
)
def test_several_steps_are_certified_where_each_counts_positively(settings, reason, observed):
    observation = observed(*sure(4, size=2.0), smoothing=0.0, lr=0.01)
    protocol = replace(observation.protocol, steps=3, lrs=(0.01,) * 3, **settings)
    found = label_of_one(replace(observation, protocol=protocol))
    assert found.certificate.certified == (not reason), found.certificate.reason
    assert reason in found.certificate.reason
    behind = label_of_one(replace(observation, protocol=protocol, defenses=({"name": "any"},)))
    assert not behind.certificate.certified


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("lr", [None, 0.1])
def test_a_weight_that_is_not_finite_certifies_nothing(observed, value, lr):
    seen = observed([1.0, 0.0, 0.5, -1.0, 0.2, 0.1], 2, smoothing=0.0, lr=lr)
    assert label_of_one(seen).certificate.certified
    weight = seen.update.tensors["head.weight"].clone()
    weight[0, 0] = value
    spoilt = replace(seen, update=replace(seen.update, tensors={**seen.update.tensors, "head.weight": weight}))
    result = label_of_one(spoilt)
    assert result.labels.tolist() == [2]
    assert result.certificate.status == "uncertified"
    assert "head.weight's gradient is not finite" in result.certificate.reason
