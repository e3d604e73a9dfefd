"""Roundings of a ViT's gradient, measured between float32 and float64."""

import copy

import pytest
import timm
import torch
from torch.nn import functional as F

from fedsim.bounds.rounding import rounding_of_rows, rounding_std

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(params=[1e-6, 1e-3, None])
def position(request, rng):
    """The position embedding's gradient in float32 and float64, and the norm of all, by LayerScale."""
    torch.manual_seed(0)
    small = {"img_size": 8, "patch_size": 2, "depth": 2, "embed_dim": 64, "num_heads": 2, "num_classes": 10}
    vit = timm.create_model("vit_tiny_patch16_224", init_values=request.param, **small).eval()
    images, found = torch.rand(1, 3, 8, 8, generator=rng), []
    for model, dtype in ((vit, torch.float32), (copy.deepcopy(vit).double(), torch.float64)):
        F.cross_entropy(model(images.to(dtype)), torch.tensor([3])).backward()
        whole = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        found.append(model.pos_embed.grad.flatten(0, -2).double())
    return *found, float(whole), request.param


def test_each_row_of_the_position_embedding_is_off_by_a_few_roundings_of_its_own(position):
    single, double, whole, scale = position
    measured = (single - double).square().mean(dim=1).sqrt()
    ratio = (measured / rounding_of_rows(double, whole, EPS)[:, 0])[1:]
    assert 0.1 < float(ratio.median()) < 10
    if scale == 1e-6:  # by the whole tensor, which the class token's row is
        assert float(measured[1:].median()) < 1e-3 * rounding_std(float(double.norm()), double.numel(), whole, EPS)


def test_rows_of_zeros_are_off_by_a_rounding_of_the_whole():
    found = rounding_of_rows(torch.zeros(4, 8), 1.0, EPS)
    assert found.shape == (4, 1)
    assert bool((found == rounding_std(0.0, 32, 1.0, EPS)).all())
