"""Adapters and prompts against what they are by definition."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec
from fedsim.models.finetune import Adapter, LoRA, Prompt, recorded_finetune

NANO = ModelSpec("vit_nano_patch2_8", 10, dtype="float64")
AVERAGED = ModelSpec("vit_nano_patch2_8", 10, dtype="float64", kwargs={"global_pool": "avg"})
HEAD = {"head.weight", "head.bias"}


def prepared(recipe, spec=NANO, seed=0):
    return Architecture(spec, seed=seed, finetune=recipe).build()


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.fixture
def images(rng):
    return torch.randn(2, 3, 8, 8, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("after", [["mlp"], ["attn", "mlp"]])
def test_an_adapter_is_the_identity_at_first(after, images):
    model = prepared(Adapter(hidden=4, after=after))
    assert torch.equal(model(images), NANO.build(0)(images))
    parts = ("down.weight", "down.bias", "up.weight", "up.bias")
    expected = {f"blocks.{block}.{name}.adapter.{part}" for block in (0, 1) for name in after for part in parts}
    assert trained(model) == HEAD | expected
    assert NANO.build(0).state_dict().keys() == model.state_dict().keys() - expected


def test_an_adapter_stands_behind_its_module(images):
    """As blocks written out compute it."""
    model = prepared(Adapter(hidden=4))
    for name, parameter in model.named_parameters():
        if "adapter.up" in name:
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    bare = NANO.build(0)
    tokens = bare._pos_embed(bare.patch_embed(images))
    for place, block in enumerate(bare.blocks):
        adapter = model.blocks[place].mlp.adapter
        tokens = tokens + block.attn(block.norm1(tokens))
        hidden = block.mlp(block.norm2(tokens))
        inner = F.gelu(hidden @ adapter.down.weight.T + adapter.down.bias)
        tokens = tokens + hidden + inner @ adapter.up.weight.T + adapter.up.bias
    torch.testing.assert_close(model(images), bare.head(bare.norm(tokens)[:, 0]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", [NANO, AVERAGED])
@pytest.mark.parametrize("deep", [False, True])
def test_prompts_stand_beside_the_tokens(deep, spec, images):
    """As blocks written out compute it, with the prompt in front."""
    model, bare = prepared(Prompt(tokens=3, deep=deep), spec), spec.build(0)
    tokens = bare._pos_embed(bare.patch_embed(images))
    prompt = model.blocks[0].prompt
    for place, block in enumerate(bare.blocks):
        prompt = model.blocks[place].prompt if deep else prompt
        both = block(torch.cat([prompt.expand(2, -1, -1), tokens], dim=1))
        prompt, tokens = both[:, :3], both[:, 3:]
    tokens = bare.norm(tokens)
    pooled = tokens[:, 0] if spec is NANO else bare.fc_norm(tokens[:, 1:].mean(dim=1))
    torch.testing.assert_close(model(images), bare.head(pooled), rtol=1e-10, atol=1e-12)
    assert trained(model) == HEAD | {f"blocks.{place}.prompt" for place in ((0, 1) if deep else (0,))}


@pytest.mark.parametrize("recipe", [Adapter(), Prompt(deep=True)])
def test_draws_come_from_the_seed(recipe):
    first, again, other = (prepared(recipe, seed=seed).state_dict() for seed in (3, 3, 4))
    added = first.keys() - NANO.build(0).state_dict().keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert any(not torch.equal(first[name], other[name]) for name in added)


@pytest.mark.parametrize("recipe", [Adapter(), Prompt(deep=True)])
def test_copies_compute_the_same_and_are_apart(recipe, images):
    model = prepared(recipe)
    copied = copy.deepcopy(model)
    assert torch.equal(model(images), copied(images))
    before = model(images)
    for name, parameter in copied.named_parameters():
        if name in trained(model) - HEAD:
            parameter.data += 1
    assert torch.equal(model(images), before)
    assert not torch.equal(copied(images), before)


@pytest.mark.parametrize("recipe", [Adapter(2, ["attn"], False), Prompt(2, True, False)])
def test_records_come_back(recipe):
    assert recorded_finetune(recipe.to_record()) == recipe


def test_refusals():
    with pytest.raises(ConfigError, match=r"finetune\.hidden=0: must be a whole number of at least 1"):
        Adapter(hidden=0)
    with pytest.raises(ConfigError, match=r"finetune\.after=pml: .*Did you mean 'mlp'"):
        prepared(Adapter(after=["pml"]))
    with pytest.raises(ConfigError, match=r"finetune\.tokens=0: must be a whole number of at least 1"):
        Prompt(tokens=0)
    specs = [ModelSpec(name, 5) for name in ("resnet18", "eva02_tiny_patch14_224", "beit_base_patch16_224")]
    for spec in (*specs, ModelSpec("convit_tiny", 5, 32, 8, kwargs={"depth": 1})):
        with pytest.raises(
            ConfigError, match="finetune=prompt: must be a ViT of timm's whose blocks read tokens without rotary"
        ):
            prepared(Prompt(), spec)


@pytest.mark.parametrize(
    ("recipe", "other"),
    [
        (LoRA(rank=2), LoRA(rank=3)),
        (LoRA(rank=2), LoRA(rank=2, alpha=1.0)),
        (Adapter(hidden=3), Adapter(hidden=4)),
        (Prompt(2, deep=True), Prompt(3, deep=True)),
    ],
)
def test_a_model_that_was_prepared_keeps_what_it_has_learned(recipe, other, images):
    """As a later round starts from it."""
    model = prepared(recipe)
    for name in trained(model):
        model.get_parameter(name).data += 0.1
    before, state = model(images), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    again = recipe.prepare(model, 7)
    assert torch.equal(again(images), before)
    assert trained(again) == trained(prepared(recipe))
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    with pytest.raises(ConfigError, match=r"finetune\.(rank|hidden|tokens)=\d: must be \d"):
        other.prepare(again)


def test_a_module_whose_last_linear_layer_does_not_give_its_output_is_refused():
    """ConViT registers the projection of positions, as wide as there are heads, behind that of the output."""
    spec = ModelSpec("convit_tiny", 5, 32, kwargs={"depth": 1, "embed_dim": 12, "num_heads": 4, "patch_size": 16})
    recipe = Adapter(after=["attn"])
    with pytest.raises(ConfigError, match=r"^finetune=adapter: must be what fits the modules of ConVit"):
        recipe.check(prepared(recipe, spec), (3, 32, 32))
