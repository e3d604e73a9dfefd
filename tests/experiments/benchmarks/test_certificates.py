"""Withheld true counts leave nothing to certify; given, they certify."""

from types import SimpleNamespace

import torch

from experiments.benchmarks.certificates import measure
from fedsim.models import ModelSpec


def test_true_counts_certify_and_wrong_ones_do_not():
    rng = torch.Generator().manual_seed(0)
    model = ModelSpec("vit_tiny_patch16_224", 10, 32, 8, kwargs={"depth": 1}).build(0).train()
    pictures = SimpleNamespace(
        images=torch.rand(40, 3, 32, 32, generator=rng),
        auxiliary=torch.rand(16, 3, 32, 32, generator=rng),
        labels=torch.arange(40) % 10,
    )
    row = measure(model, pictures, size=4, batches=2)
    assert (row["right"], row["wrong"], row["false"]) == (2, 0, 0)
    assert row["tried"] >= 2 * 20
    assert float(str(row["error"]).split("/")[1]) < 1e-2
