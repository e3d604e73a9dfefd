import numpy as np
import pytest
import torch
from PIL import Image

from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec
from fedsim.report.draw.attention import AttentionView, attention_maps, draw_attention, last_attention, overlay

SPEC = ModelSpec("vit_nano_patch2_8", 10)


def pictures(count=2):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_against_queries_and_keys_by_hand():
    model = SPEC.build(0).eval()
    attention = model.blocks[-1].attn
    read = []
    handle = attention.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with last_attention(model) as taken:
        model(pictures())
    handle.remove()
    tokens = read[0].double()
    weight, bias = attention.qkv.weight.double(), attention.qkv.bias.double()
    heads, width = attention.num_heads, tokens.shape[-1]
    for head in range(heads):
        rows = slice(head * width // heads, (head + 1) * width // heads)
        query = tokens @ weight[:width][rows].T + bias[:width][rows]
        key = tokens @ weight[width : 2 * width][rows].T + bias[width : 2 * width][rows]
        for picture in range(2):
            scores = query[picture] @ key[picture].T / (width / heads) ** 0.5
            expected = torch.exp(scores) / torch.exp(scores).sum(1, keepdim=True)
            torch.testing.assert_close(taken[0][picture, head].double(), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_model_is_as_before():
    model = SPEC.build(0).eval()
    attention = model.blocks[-1].attn
    attention.fused_attn = True
    before = model(pictures())
    with last_attention(model) as taken:
        assert not attention.fused_attn
        torch.testing.assert_close(model(pictures()), before, atol=1e-5, rtol=1e-4)
    assert attention.fused_attn
    assert torch.equal(model(pictures()), before)
    assert len(taken) == 1
    assert not attention.attn_drop._forward_pre_hooks


def test_what_the_class_token_sees(rng):
    attention = torch.rand(2, 3, 13, 13, generator=rng).softmax(-1)
    maps = attention_maps(attention, (3, 4), 1, True)
    assert maps.shape == (2, 3, 3, 4)
    assert maps[1, 2, 2, 1] == attention[1, 2, 0, 1 + 2 * 4 + 1]
    got = attention_maps(attention[:, :, 1:, 1:], (3, 4), 0, False)
    torch.testing.assert_close(got[0, 0, 1, 1], attention[0, 0, 1:, 1 + 5].mean())


def test_of_registers_without_a_class_token_none_is_taken_for_it(rng):
    """The first of them was drawn as if it were one."""
    attention = torch.rand(2, 3, 16, 16, generator=rng).softmax(-1)
    maps = attention_maps(attention, (3, 4), 4, False)
    torch.testing.assert_close(maps[1, 2, 2, 1], attention[1, 2, 4:, 4 + 2 * 4 + 1].mean())


def test_models_without_attention_say_so():
    with pytest.raises(NotApplicable, match="MLP"), last_attention(ModelSpec("mlp_32", 10).build(0)):
        pass


def test_overlay_is_brightest_where_attention_is():
    attention = torch.zeros(4, 4)
    attention[1, 2] = 1.0
    mixed = overlay(torch.zeros(3, 8, 8), attention)
    assert mixed.shape == (8, 8, 3)
    bright = mixed.sum(-1)
    assert (bright[2:4, 4:6] == bright.max()).all()
    assert np.count_nonzero(bright == bright.max()) == 4
    assert np.isfinite(overlay(torch.zeros(3, 8, 8), torch.ones(4, 4))).all()


def test_the_figure(tmp_path):
    views = [AttentionView(name, torch.rand(2, 4, 4), torch.rand(2, 4, 4)) for name in ("a", "b")]
    draw_attention(pictures(), pictures().flip(3), views, tmp_path / "attention.png")
    with Image.open(tmp_path / "attention.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.std() > 20
