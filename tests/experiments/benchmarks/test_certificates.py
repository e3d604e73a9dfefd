"""Withheld true counts leave nothing to certify; given, they certify."""

from types import SimpleNamespace

import pytest
import torch

from experiments.benchmarks.certificates import measure
from experiments.benchmarks.heads import KINDS, MLP, adam, head_of, trained
from fedsim.models import ModelSpec


@pytest.fixture(scope="module")
def pictures():
    rng = torch.Generator().manual_seed(0)
    return SimpleNamespace(
        images=torch.rand(40, 3, 32, 32, generator=rng),
        auxiliary=torch.rand(16, 3, 32, 32, generator=rng),
        labels=torch.arange(40) % 10,
    )


def test_true_counts_certify_and_wrong_ones_do_not(pictures):
    model = ModelSpec("vit_tiny_patch16_224", 10, 32, 8, kwargs={"depth": 1}).build(0).train()
    row = measure(head_of("vit", model, pictures, pictures.labels), "as trained", size=4, batches=2)
    assert (row.right, row.wrong, row.uncertified, row.false) == (2, 0, 0, 0)
    assert row.uncertified_for == "-"
    assert float(row.error.split("/")[1]) < 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_trained_and_their_batches_are_counted(kind, pictures):
    heads = list(trained("mlp", MLP, pictures, adam, steps=(0, 40)))
    assert [head.name for head in heads] == ["mlp, 0 steps", "mlp, 40 steps", "mlp, 40 steps, label noise"]
    assert heads[0].accuracy < heads[1].accuracy
    row = measure(heads[1].times(4.0), kind, size=2, batches=2)
    assert row.head == "mlp, 40 steps, head × 4"
    assert row.right + row.uncertified == 2
    assert (row.wrong, row.false) == (0, 0)
