"""The server's own pictures, and the published rules that learn from them."""

from dataclasses import replace

import pytest
import torch

from attacks.label import RecoverLabels
from attacks.label.rules.reference import random_reference
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec

SMALL = {"depth": 1}
LABELS = [1, 1, 1, 4, 4, 6, 9, 9]


def test_reference_is_the_models_own_answer_and_replays(tools, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(2), [3, 4])
    before = torch.random.get_rng_state()
    first, second = (random_reference(observation, torch.Generator().manual_seed(1), cpu, 4) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.features, second.features)
    head = observation.build_model().head
    torch.testing.assert_close(first.probs, head.double()(first.features).softmax(dim=1).detach(), atol=1e-6, rtol=0)
    assert first.features.shape == (4, 192)


def test_counts_of_a_resnet(tools, rng, cpu):
    observation = tools.observe(ModelSpec("resnet10t", 10, 32), tools.detailed(8, 32), LABELS)
    for rule in ("llg", "llg_bias", "zlg", "ilrg"):
        assert RecoverLabels(rule)(observation, rng, cpu).labels.tolist() == LABELS, rule
    distinct = tools.observe(ModelSpec("resnet10t", 10, 32), tools.detailed(4, 32), [0, 2, 5, 8])
    for rule in ("gradinversion_sum", "llg", "rlg"):
        assert RecoverLabels(rule)(distinct, rng, cpu).labels.tolist() == [0, 2, 5, 8], rule


def test_bias_form_and_sets_on_a_vit(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL), tools.detailed(8), LABELS)
    assert RecoverLabels("llg_bias")(observation, rng, cpu).labels.tolist() == LABELS
    observation = replace(observation, auxiliary_probs=random_reference(observation, rng, cpu).probs.mean(dim=0))
    assert RecoverLabels("llg_bias")(observation, rng, cpu).labels.tolist() == LABELS
    many = tools.observe(tools.tiny(kwargs=SMALL, num_classes=40), tools.detailed(8), LABELS)
    assert RecoverLabels("rlg")(many, rng, cpu).labels.tolist() == [1, 4, 6, 9]
    assert len(RecoverLabels("llg", reference=False)(many, rng, cpu).labels) == 8


def test_refusals(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs=SMALL, num_classes=4), tools.detailed(4), [0, 1, 2, 3])
    with pytest.raises(NotApplicable, match="separates each"):
        RecoverLabels("rlg")(observation, rng, cpu)
    distilled = ModelSpec("deit_tiny_distilled_patch16_224", 10, 32, 4, kwargs=SMALL)
    observation = tools.observe(distilled, tools.detailed(2), [1, 2])
    with pytest.raises(NotApplicable, match="one linear head"):
        RecoverLabels("zlg")(observation, rng, cpu)
    with pytest.raises(NotApplicable, match="averages the logits"):
        RecoverLabels("ilrg")(observation, rng, cpu)
    with pytest.raises(ConfigError, match="zlg knows no features"):
        RecoverLabels("zlg", reference=False)
