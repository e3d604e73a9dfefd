"""The certificate on real models' updates."""

from dataclasses import replace

import pytest
import torch

from attacks.label import CertifiedLabels, RecoverLabels
from attacks.label.certified import features_of
from defenses import GradientClip, GradientNoise
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec

SMALL = {"depth": 1}
LABELS = [1, 1, 1, 4, 6, 9]


def head_inputs(observation, pictures):
    model = observation.build_model()
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (observation.mean, observation.std))
    with torch.no_grad():
        return model.forward_head(model.forward_features(((pictures - mean) / std).float()), pre_logits=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 0.1}, {"lr": 0.1, "kind": "weights"}, {"label_smoothing": 0.1}, {"seed": 3}],
    ids=["gradient", "delta", "weights", "smoothing", "seed"],
)
def test_labels_and_features_of_a_vit(options, tools, rng, cpu):
    pictures = tools.detailed(6)
    observation = tools.observe(tools.tiny(kwargs=SMALL), pictures, LABELS, **options)
    result = CertifiedLabels()(observation, rng, cpu)
    assert result.certificate.certified, result.certificate.reason
    assert result.labels.tolist() == LABELS
    assert result.certificate.values["residual"] < result.certificate.values["tolerance"]
    assert result.certificate.values["tried"] >= 1
    found = features_of(observation, cpu, torch.Generator().manual_seed(0))
    truth = head_inputs(observation, pictures).double()
    distances = torch.cdist(found.features, truth, compute_mode="donot_use_mm_for_euclid_dist")
    bound = 1e-3 if "kind" not in options and "lr" not in options else 0.05
    assert float(distances.min(dim=0).values.max() / truth.norm(dim=1).mean()) < bound


def test_on_a_resnet(tools, rng, cpu):
    observation = tools.observe(ModelSpec("resnet10t", 10), tools.detailed(4, 32), [2, 2, 5, 8])
    result = CertifiedLabels()(observation, rng, cpu)
    assert result.certificate.certified, result.certificate.reason
    assert result.labels.tolist() == [2, 2, 5, 8]


def test_same_rng_same_bits(tools, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(6), LABELS)
    first, second = (features_of(observation, cpu, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first.features, second.features)


def test_perturbed_and_random_gradients_are_not_certified(tools, rng, cpu):
    spec = tools.tiny(kwargs=SMALL)
    for defense in (GradientNoise(relative_norm=1e-3), GradientClip(0.5)):
        observation = tools.observe(spec, tools.detailed(6), LABELS, defenses={"it": defense})
        result = CertifiedLabels()(observation, rng, cpu)
        assert result.certificate.status == "uncertified"
        assert result.certificate.reason
    observation = tools.observe(spec, tools.detailed(6), LABELS)
    assert not CertifiedLabels(8)(tools.random_gradient(observation), rng, cpu).certificate.certified


def test_auto_certifies_small_batches_and_counts_large_ones(tools, rng, cpu):
    spec = tools.tiny(kwargs=SMALL)
    small = RecoverLabels()(tools.observe(spec, tools.detailed(6), LABELS), rng, cpu)
    assert small.certificate.certified
    assert small.labels.tolist() == LABELS
    large = RecoverLabels()(tools.observe(spec, tools.detailed(9), [*LABELS, 2, 3, 3]), rng, cpu)
    assert not large.certificate.certified


def test_refusals(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(2), [3, 4])
    attack = CertifiedLabels()
    with pytest.raises(NotApplicable, match="2 local steps"):
        attack(replace(observation, protocol=replace(observation.protocol, steps=2)), rng, cpu)
    many = replace(
        observation,
        protocol=replace(observation.protocol, batch_size=10),
        update=replace(observation.update, num_examples=10),
    )
    with pytest.raises(NotApplicable, match="counts of at most 9"):
        attack(many, rng, cpu)
    with pytest.raises(NotApplicable, match="at most 4 can be served"):
        CertifiedLabels(max_batch_size=4)(many, rng, cpu)
    wide = tools.observe(tools.tiny(num_classes=40, kwargs=SMALL), tools.detailed(1), [3])
    larger = replace(wide, protocol=replace(wide.protocol, batch_size=33), update=replace(wide.update, num_examples=33))
    with pytest.raises(NotApplicable, match="33 examples: their features are solved for in batches of at most 32"):
        features_of(larger, cpu, rng)
    smoothed = replace(observation, protocol=replace(observation.protocol, label_smoothing=1.0))
    with pytest.raises(NotApplicable, match="leaves nothing"):
        attack(smoothed, rng, cpu)
    without = {name: t for name, t in observation.update.tensors.items() if name != "head.weight"}
    kept = replace(observation, update=replace(observation.update, tensors=without, withheld={"head.weight": "mine"}))
    with pytest.raises(NotApplicable, match=r"head\.weight's gradient is withheld by mine"):
        attack(kept, rng, cpu)
    headless = replace(observation, roles=replace(observation.roles, head_biases=(), head_weights=()))
    with pytest.raises(NotApplicable, match="no linear head"):
        attack(headless, rng, cpu)
    distilled = ModelSpec("deit_tiny_distilled_patch16_224", 10, 32, 4, kwargs=SMALL)
    with pytest.raises(NotApplicable, match="averages the logits of 2 heads"):
        attack(tools.observe(distilled, tools.detailed(2), [1, 2]), rng, cpu)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="max_candidates"):
        CertifiedLabels(max_candidates=0)
    with pytest.raises(ConfigError, match="max_batch_size"):
        CertifiedLabels(max_batch_size=0)


@pytest.mark.parametrize("named", ["defenses.GradientClip", "somebody.elses.Clipping"])
def test_whatever_a_defense_is_called_its_gradient_is_not_certified(named, tools, rng, cpu):
    """Labels are named all the same; a gradient that was not touched names the right ones."""
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(2), [3, 5])
    assert CertifiedLabels()(observation, rng, cpu).certificate.certified
    for attack in (CertifiedLabels(), RecoverLabels()):
        result = attack(replace(observation, defenses=({"_target_": named, "max_norm": 0.5},)), rng, cpu)
        assert result.labels.tolist() == [3, 5]
        assert not result.certificate.certified
    summed = CertifiedLabels()(replace(observation, summed=2), rng, cpu)
    assert summed.labels.tolist() == [3, 5]
    assert "2 clients were summed" in summed.certificate.reason
