import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from attacks.optimization.priors import FeatureTarget
from attacks.optimization.priors.feature_target import centred_head_row_features, head_row_features
from defenses import GradientClip, GradientNoise, Half
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec
from fedsim.update import Update

DISTILLED = ModelSpec("deit_tiny_distilled_patch16_224", 10, 32, 4, dtype="float64", kwargs={"depth": 1})


def normalised(observation, pictures):
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, -1, 1, 1) for v in (observation.mean, observation.std))
    return (pictures - mean) / std


def features(observation, images):
    model = observation.build_model().eval()
    with torch.no_grad():
        return model.forward_head(model.forward_features(images), pre_logits=True)


def test_against_timm_gradient_and_vmap(vit, candidates, cpu, check):
    labels = torch.tensor([3, 7])
    term = FeatureTarget(1).prepare(vit, labels, cpu)
    targets = torch.stack([vit.gradient["head.weight"][c] / vit.gradient["head.bias"][c] for c in (3, 7)])
    found = features(vit, candidates[0])
    expected = sum(float((f - t).norm() ** 2 / t.norm() ** 2) for f, t in zip(found, targets, strict=True)) / 2
    assert float(term(candidates[0])) == pytest.approx(expected, rel=1e-9)
    check(term, candidates)


@pytest.mark.parametrize("source", ["head_rows", "centred_head_rows"])
@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("vit_tiny_patch16_224", 10, 32, 4, dtype="float64", kwargs={"depth": 1}),
        DISTILLED,
        ModelSpec("test_efficientnet", 10, dtype="float64"),  # its BatchNorm uses the batch, as the client's did
    ],
    ids=["vit", "distilled", "cnn"],
)
def test_exact_for_one_example(spec, source, tools, cpu):
    side = spec.img_size or 64
    picture = tools.photographs(side)[:1]
    seen = tools.observe(spec, picture, [4], label_smoothing=0.1 if source == "centred_head_rows" else 0.0)
    term = FeatureTarget(1, source).prepare(seen, torch.tensor([4]), cpu)
    assert float(term(normalised(seen, picture))) < 1e-12
    assert float(term(normalised(seen, tools.photographs(side)[1:]))) > 1e-3


def test_centred_rows_are_of_the_true_size(tools, cpu):
    spec = ModelSpec("vit_tiny_patch16_224", 10, 32, 4, kwargs={"depth": 1})
    seen = tools.observe(spec, tools.photographs(32)[:1], [4], defenses={"clip": GradientClip(1e-3)})
    FeatureTarget(1, "head_rows").prepare(seen, torch.tensor([4]), cpu)
    with pytest.raises(NotApplicable, match="in its true size"):
        FeatureTarget(1, "centred_head_rows").prepare(seen, torch.tensor([4]), cpu)
    for defense in (Half(), GradientNoise(relative_norm=0.1)):  # errors leave the size about what it was
        seen = tools.observe(spec, tools.photographs(32)[:1], [4], defenses={"own": defense})
        FeatureTarget(1, "centred_head_rows").prepare(seen, torch.tensor([4]), cpu)


def test_order_of_labels_and_repeated_ones(tools, cpu):
    """Pictures with a label of their own have a target, in the order of the labels; the others have none."""
    spec = replace(DISTILLED, name="vit_tiny_patch16_224", num_classes=1000)
    pictures = tools.detailed(4)
    seen = tools.observe(spec, pictures, [9, 5, 5, 2])
    images = normalised(seen, pictures)
    term = FeatureTarget(1).prepare(seen, torch.tensor([9, 5, 5, 2]), cpu)
    right = float(term(images))
    assert right < 0.1
    assert float(term(images[[0, 2, 1, 3]])) == pytest.approx(right)
    assert float(term(torch.cat([images[:1], torch.zeros_like(images[1:3]), images[3:]]))) == pytest.approx(right)
    assert float(term(images[[3, 1, 2, 0]])) > 2 * right
    reordered = FeatureTarget(1).prepare(seen, torch.tensor([5, 2, 9, 5]), cpu)
    assert float(reordered(images[[1, 3, 0, 2]])) == pytest.approx(right)


def test_centring_helps_where_classes_are_few(tools, cpu):
    pictures = torch.cat([tools.photographs(32), tools.detailed(2)])
    labels = torch.tensor([1, 4, 6, 9])
    seen = tools.observe(tools.tiny(kwargs={"depth": 2}, dtype="float64"), pictures, labels.tolist())
    true = features(seen, normalised(seen, pictures))
    weight_grad, bias_grad = seen.gradient["head.weight"], seen.gradient["head.bias"]
    plain = head_row_features(weight_grad, bias_grad, labels)
    centred = centred_head_row_features(weight_grad, bias_grad, labels, labels)
    errors = [float(((found - true).norm(dim=1) / true.norm(dim=1)).mean()) for found in (plain, centred)]
    assert errors[1] < 0.5 * errors[0]


def test_a_shared_error_of_scale_changes_nothing(vit, candidates, cpu):
    smaller = {name: 0.01 * tensor for name, tensor in vit.update.tensors.items()}
    clipped = replace(vit, update=Update(smaller, "gradient", 2))
    terms = [FeatureTarget(1).prepare(seen, torch.tensor([3, 7]), cpu) for seen in (vit, clipped)]
    assert float(terms[0](candidates[0])) == pytest.approx(float(terms[1](candidates[0])))


def test_certificate(vit, tools, cpu, monkeypatch):
    """Features come sorted by label; the pictures need not be."""
    images = normalised(vit, tools.photographs(32))
    true = features(vit, images)  # labels 3, 7
    found = SimpleNamespace(
        labels=torch.tensor([3, 7]),
        features=true,
        residual=1e-12,
        certified=True,
        feature_error=1e-9,
        reason="7 are possible",
    )
    stub = SimpleNamespace(features_of=lambda observation, device, rng: found)
    monkeypatch.setitem(sys.modules, "attacks.label.certified", stub)
    term = FeatureTarget(1, "certificate").prepare(vit, torch.tensor([7, 3]), cpu)
    assert float(term(images.flip(0))) < 1e-20
    assert float(term(images)) > 1e-4
    with pytest.raises(NotApplicable, match="not those of the attack"):
        FeatureTarget(1, "certificate").prepare(vit, torch.tensor([3, 8]), cpu)
    found.features = true[:, :5]
    with pytest.raises(NotApplicable, match="width 5 for classifiers that read 192"):
        FeatureTarget(1, "certificate").prepare(vit, torch.tensor([3, 7]), cpu)
    found.feature_error = 0.5
    with pytest.raises(NotApplicable, match="certified, the features may be 50% off"):
        FeatureTarget(1, "certificate").prepare(vit, torch.tensor([3, 7]), cpu)
    found.feature_error = 3.7e13
    with pytest.raises(NotApplicable, match="certified, the features may be all error"):
        FeatureTarget(1, "certificate").prepare(vit, torch.tensor([3, 7]), cpu)
    found.certified = False
    with pytest.raises(NotApplicable, match="not certified: 7 are possible"):
        FeatureTarget(1, "certificate").prepare(vit, torch.tensor([3, 7]), cpu)


def test_certified_features_of_equal_labels(tools, cpu):
    """Two pictures of one class: the certificate tells them apart, as no head row does."""
    pictures = torch.cat([tools.photographs(32), tools.detailed(1)])
    seen = tools.observe(tools.tiny(kwargs={"depth": 1}, dtype="float64"), pictures, [6, 2, 2])
    images = normalised(seen, pictures)
    term = FeatureTarget(1, "certificate").prepare(seen, torch.tensor([6, 2, 2]), cpu)
    orders = {order: float(term(images[list(order)])) for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0))}
    best = min(orders, key=orders.get)
    assert best in ((0, 1, 2), (0, 2, 1))
    assert orders.pop(best) < 1e-8
    assert min(orders.values()) > 1e-4


def test_refusals(vit, cpu):
    with pytest.raises(ConfigError, match="head_rows, centred_head_rows, certificate"):
        FeatureTarget(1, "rows")
    prior, labels = FeatureTarget(1), torch.tensor([3, 7])
    with pytest.raises(NotApplicable, match="need a class for each picture"):
        prior.prepare(vit, None, cpu)
    with pytest.raises(NotApplicable, match="every label occurs more than once"):
        prior.prepare(vit, torch.tensor([3, 3]), cpu)
    steps = replace(vit, protocol=replace(vit.protocol, steps=5))
    with pytest.raises(NotApplicable, match="5 local steps"):
        prior.prepare(steps, labels, cpu)
    tensors = {name: tensor for name, tensor in vit.update.tensors.items() if name != "head.bias"}
    withheld = replace(vit, update=replace(vit.update, tensors=tensors, withheld={"head.bias": "withhold_head"}))
    with pytest.raises(NotApplicable, match=r"head\.bias's gradient is withheld by withhold_head"):
        prior.prepare(withheld, labels, cpu)
    headless = replace(vit, roles=replace(vit.roles, head_weights=(), head_biases=()))
    with pytest.raises(NotApplicable, match="no linear classifier"):
        prior.prepare(headless, labels, cpu)
    no_bias = replace(vit, roles=replace(vit.roles, head_biases=()))
    with pytest.raises(NotApplicable, match="it has none"):
        prior.prepare(no_bias, labels, cpu)
    zero = {**vit.update.tensors, "head.weight": torch.zeros_like(vit.update.tensors["head.weight"])}
    with pytest.raises(NotApplicable, match="zero for a class"):
        prior.prepare(replace(vit, update=replace(vit.update, tensors=zero)), labels, cpu)
    with pytest.raises(NotApplicable, match="every class is in the batch"):
        FeatureTarget(1, "centred_head_rows").prepare(vit, torch.arange(10), cpu)
