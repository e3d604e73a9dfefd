import json

import pytest
import torch
from torch import nn

from fedsim.models import ModelSpec, ViTRoles, find_roles
from fedsim.models.zoo.april import DirectAttentionBlock

STOCK = {"patch_weight": "patch_embed.proj.weight", "patch_bias": "patch_embed.proj.bias", "pos_embed": "pos_embed"}
QKV = {"qkv_weight": "blocks.0.attn.qkv.weight", "qkv_bias": "blocks.0.attn.qkv.bias"}
ONE_HEAD = {"head_weights": ("head.weight",), "head_biases": ("head.bias",)}
CLASS = {"class_token": "cls_token", "prefix_names": ("cls_token",), "prefix_tokens": 1, "embedded_prefix_tokens": 1}

MODELS = {
    "vit_tiny_patch16_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS},
    "vit_small_patch16_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS},
    "vit_base_patch16_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS},
    "deit_small_patch16_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS},
    "deit_small_distilled_patch16_224": {
        **STOCK,
        **QKV,
        "head_weights": ("head.weight", "head_dist.weight"),
        "head_biases": ("head.bias", "head_dist.bias"),
        "class_token": "cls_token",
        "prefix_names": ("cls_token", "dist_token"),
        "prefix_tokens": 2,
        "embedded_prefix_tokens": 2,
    },
    "deit3_small_patch16_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS, "embedded_prefix_tokens": 0},
    "vit_little_patch16_reg4_gap_256": {
        **STOCK,
        **QKV,
        **ONE_HEAD,
        "class_token": None,
        "prefix_names": ("reg_token",),
        "prefix_tokens": 4,
        "embedded_prefix_tokens": 0,
    },
    "vit_base_patch16_gap_224": {**STOCK, **QKV, **ONE_HEAD, "prefix_tokens": 0, "prefix_names": ()},
    "vit_base_patch16_clip_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS, "patch_bias": None},
    "vit_base_patch16_rope_224": {**QKV, **ONE_HEAD, **CLASS, "pos_embed": None, "embedded_prefix_tokens": 0},
    "vit_small_patch16_rope_ape_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS, "embedded_prefix_tokens": 0},
    "vit_small_patch16_dinov3": {
        **ONE_HEAD,
        "pos_embed": None,
        "class_token": "cls_token",
        "prefix_names": ("cls_token", "reg_token"),
        "prefix_tokens": 5,
        "embedded_prefix_tokens": 0,
    },
    "eva02_base_patch16_clip_224": {
        **STOCK,
        **ONE_HEAD,
        **CLASS,
        "qkv_weight": None,
        "qkv_weights": tuple(f"blocks.0.attn.{part}_proj.weight" for part in "qkv"),
        "rotary": True,
        "relative": False,
    },
    "beit_base_patch16_224": {
        **ONE_HEAD,
        **CLASS,
        "pos_embed": None,
        "embedded_prefix_tokens": 0,
        "qkv_weights": ("blocks.0.attn.qkv.weight",),
        "rotary": False,
        "relative": True,
    },
    "cait_xxs24_224": {**STOCK, **QKV, **ONE_HEAD, **CLASS, "prefix_tokens": 0, "embedded_prefix_tokens": 0},
}


@pytest.mark.parametrize("name", MODELS)
def test_parts_by_role(name):
    model = ModelSpec(name, 7, img_size=64, kwargs={"depth": 1}).build(0)
    roles = find_roles(model)
    for role, expected in MODELS[name].items():
        assert getattr(roles, role) == expected, role
    assert roles.grid == (4, 4)
    assert roles.patch == (16, 16)
    assert roles.obstacles == ()
    assert not roles.direct_attention
    assert roles.rotary == any(family in name for family in ("rope", "dinov3", "eva02"))
    names = dict(model.named_parameters())
    for found in (*roles.head_weights, *roles.head_biases, *roles.prefix_names):
        assert found in names
    if roles.pos_embed:
        assert names[roles.pos_embed].shape[1] == roles.embedded_prefix_tokens + 16


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ModelSpec("resnet18", 7), "ResNet has no patch embedding"),
        (ModelSpec("vit_small_r26_s32_224", 7, img_size=64, kwargs={"depth": 1}), "hybrid stem"),
        (ModelSpec("volo_d1_224", 7), "stem"),
        (ModelSpec("vit_tiny_patch16_224", 7, 32, kwargs={"depth": 1, "patch_drop_rate": 0.2}), "patch dropout"),
        (
            ModelSpec("vit_tiny_patch16_224", 7, 32, kwargs={"depth": 1, "embed_norm_layer": "layernorm"}),
            "a norm stands inside",
        ),
    ],
)
def test_obstacles(spec, words):
    obstacles = find_roles(spec.build(0)).obstacles
    assert any(words in obstacle for obstacle in obstacles), obstacles


def test_an_overlapping_or_padded_projection_is_an_obstacle():
    model = ModelSpec("vit_tiny_patch16_224", 7, 32, kwargs={"depth": 1}).build(0)
    model.patch_embed.proj = nn.Conv2d(3, 192, 16, stride=8)
    assert any("overlaps" in obstacle for obstacle in find_roles(model).obstacles)
    model.patch_embed.proj = nn.Conv2d(3, 192, 16, stride=16, padding=4)
    assert any("pads" in obstacle for obstacle in find_roles(model).obstacles)
    model.patch_embed.proj = nn.Sequential(nn.Conv2d(3, 192, 16, stride=16))
    assert any("not one linear projection" in obstacle for obstacle in find_roles(model).obstacles)


def test_a_resnet_has_a_head_and_nothing_else():
    roles = find_roles(ModelSpec("resnet18", 7).build(0))
    assert (roles.head_weights, roles.head_biases) == (("fc.weight",), ("fc.bias",))
    assert (roles.patch_weight, roles.pos_embed, roles.qkv_weight, roles.grid) == (None, None, None, None)


def test_the_april_variant_is_seen():
    model = ModelSpec("vit_tiny_patch16_224", 7, 32, 4, variant="april", kwargs={"depth": 2}).build(0)
    assert isinstance(model.blocks[0], DirectAttentionBlock)
    roles = find_roles(model)
    assert roles.direct_attention
    assert roles.qkv_weight == "blocks.0.attn.qkv.weight"
    assert not any(name.startswith("blocks.0.norm1") for name in model.state_dict())


def test_roles_survive_json():
    roles = find_roles(ModelSpec("deit_tiny_distilled_patch16_224", 7, 32, kwargs={"depth": 1}).build(0))
    assert ViTRoles.from_dict(json.loads(json.dumps(roles.to_dict()))) == roles


def test_the_patch_tokens_are_what_the_roles_say():
    """The embedding's output is W_p p_n + b_p + e_n at every patch, for a model with prefix tokens."""
    model = ModelSpec("deit_tiny_distilled_patch16_224", 7, 32, 8, kwargs={"depth": 1}).build(0)
    roles, state = find_roles(model), model.state_dict()
    picture = torch.randn(1, 3, 32, 32)
    patches = torch.nn.functional.unfold(picture, roles.patch, stride=roles.patch)[0].T
    tokens = patches @ state[roles.patch_weight].flatten(1).T + state[roles.patch_bias]
    expected = tokens + state[roles.pos_embed][0, roles.embedded_prefix_tokens :]
    found = model._pos_embed(model.patch_embed(picture))[0, roles.prefix_tokens :]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
