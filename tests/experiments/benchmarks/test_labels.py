"""The benchmark's closed-form gradients are those of the models; its tables hold what was measured."""

import pytest
import torch
import torch.nn.functional as F

from experiments.benchmarks.heads import draw, head_gradients, head_inputs
from experiments.benchmarks.label_rules import RULES, HeadBatch, run_rule
from experiments.benchmarks.labels import tables
from fedsim.models import ModelSpec


@pytest.mark.parametrize(
    "spec",
    [ModelSpec("vit_tiny_patch16_224", 10, 32, 8, kwargs={"depth": 1}), ModelSpec("resnet10t", 10)],
    ids=["vit", "resnet"],
)
def test_head_gradients_are_autograds(spec):
    model = spec.build(0).train()
    inputs = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 1, 4, 9])
    features = head_inputs(model, model.get_classifier(), inputs)
    F.cross_entropy(model(inputs), labels).backward()
    head = model.get_classifier()
    weight_grad, bias_grad = head_gradients(features, head.weight.detach(), head.bias.detach(), labels)
    torch.testing.assert_close(weight_grad, head.weight.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(bias_grad, head.bias.grad, atol=1e-6, rtol=1e-4)


def test_every_rule_runs_and_exact_means_the_truth():
    rng = torch.Generator().manual_seed(0)
    h = torch.rand(4, 16, generator=rng)
    weight, bias = 0.01 * torch.randn(20, 16, generator=rng), torch.zeros(20)
    labels = torch.tensor([0, 3, 7, 12])
    gradients = head_gradients(h, weight, bias, labels)
    batch = HeadBatch(labels, weight, bias, *gradients, torch.full((20,), 0.05), torch.rand(8, 16, generator=rng))
    outcomes = {rule: run_rule(rule, batch, rng) for rule in RULES}
    assert outcomes["idlg"] is None
    for rule in ("gradinversion", "rlg", "bias_sign", "bias_corrected", "bias_prior", "certified"):
        assert outcomes[rule].exact, rule
        assert outcomes[rule].overlap == 1.0
    assert outcomes["certified"].certified


def test_draws_are_distinct_or_repeat():
    labels = torch.arange(10).repeat_interleave(8)
    rng = torch.Generator().manual_seed(0)
    assert len(labels[draw(labels, 8, 10, "distinct", rng)].unique()) == 8
    repeated = draw(labels, 8, 10, "repeated", rng)
    assert len(labels[repeated].unique()) <= 4
    assert len(repeated.unique()) == 8
    assert draw(labels, 16, 10, "distinct", rng) is None
    assert draw(labels, 1, 10, "repeated", rng) is None


def test_tables_show_shares_in_per_cent():
    cell = {"setting": "s", "labels": "distinct", "rule": "certified", "batch_size": 2, "exact": 0.5, "overlap": 0.75}
    (table,) = tables([{**cell, "certified": 0.25}])
    assert "| certified | - | 50 / 75 | - | - | - | - | - |" in table
    assert "| *certified share* | - | 25 | - | - | - | - | - |" in table
