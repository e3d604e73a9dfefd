"""Swin-T, and what `ape` adds to it."""

import pytest
import timm
import torch

from fedsim.models import ModelSpec, find_roles, input_size, normalisation
from fedsim.models.finetune import LastK

NAME = "swin_ape_tiny_patch4_window7_224"
SMALL = ModelSpec(NAME, 5, 32, dtype="float64", kwargs={"window_size": 4, "depths": [1, 1], "num_heads": [3, 6]})


def test_its_parts_by_role():
    model = ModelSpec(NAME, 7).build(0)
    roles = find_roles(model)
    assert (roles.grid, roles.patch, input_size(model)) == ((56, 56), (4, 4), 224)
    assert (roles.pos_embed, roles.patch_weight) == ("pos_embed", "patch_embed.proj.weight")
    assert (roles.class_token, roles.prefix_tokens, roles.embedded_prefix_tokens) == (None, 0, 0)
    assert (roles.head_weights, roles.head_biases) == (("head.fc.weight",), ("head.fc.bias",))
    assert any("a norm stands inside the patch embedding" in obstacle for obstacle in roles.obstacles)
    assert normalisation(model) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert model.pos_embed.shape == (1, 56 * 56, 96)
    assert float(model.pos_embed.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_it_is_timms_swin_with_one_parameter_more():
    stock = timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=5, img_size=32, window_size=4, depths=(1, 1), num_heads=(3, 6)
    )
    model, stock = SMALL.build(0).eval(), stock.double().eval()
    state = model.state_dict()
    embedding = state.pop("pos_embed")
    stock.load_state_dict(state)
    pictures = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert not torch.allclose(model(pictures), stock(pictures), rtol=1e-3)
    tokens = stock.patch_embed(pictures)
    for n in range(64):
        tokens[:, n // 8, n % 8] += embedding[0, n]
    torch.testing.assert_close(model(pictures), stock.forward_head(stock.norm(stock.layers(tokens))))
    with torch.no_grad():
        model.pos_embed.zero_()
    assert torch.equal(model(pictures), stock(pictures))


def test_the_same_seed_draws_the_same_weights():
    first, second, other = (SMALL.build(seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["pos_embed"], other["pos_embed"])


@pytest.mark.parametrize(("k", "trained"), [(1, False), (2, False), (3, True)])
def test_the_embedding_is_the_last_that_the_last_blocks_take_and_does_not_decay(k, trained):
    model = LastK(k).prepare(SMALL.build(0))
    assert model.pos_embed.requires_grad == trained
    assert "pos_embed" in model.no_weight_decay()
