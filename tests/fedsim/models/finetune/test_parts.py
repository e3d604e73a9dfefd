"""Which parameters each recipe trains, against lists written out."""

import copy

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.models.finetune import FULL, Bias, Finetune, Head, LastK, Norm, recorded_finetune

NANO = ModelSpec("vit_nano_patch2_8", 10)
HEAD = {"head.weight", "head.bias"}
EMBEDDING = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
BIASED = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
BIASES = {f"blocks.{block}.{name}.bias" for block in (0, 1) for name in BIASED}
NORMS = {
    f"blocks.{block}.{name}.{part}" for block in (0, 1) for name in ("norm1", "norm2") for part in ("weight", "bias")
}
NORMS |= {"norm.weight", "norm.bias"}


def trained(recipe, spec=NANO):
    model = Architecture(spec, finetune=recipe).build()
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        (Head(), HEAD),
        (Bias(), BIASES | HEAD | {"norm.bias", "patch_embed.proj.bias"}),
        (Bias(head=False), BIASES | {"head.bias", "norm.bias", "patch_embed.proj.bias"}),
        (Norm(), NORMS | HEAD),
        (Norm(head=False), NORMS),
    ],
)
def test_the_names_are_those_of_the_part(recipe, names):
    assert trained(recipe) == names


def test_the_last_blocks_and_one_more_are_everything():
    everything, second = trained(FULL), {name for name in trained(FULL) if name.startswith("blocks.1.")}
    assert trained(LastK(1)) == second | HEAD | {"norm.weight", "norm.bias"}
    assert trained(LastK(2)) == everything - EMBEDDING
    assert trained(LastK(3)) == everything
    with pytest.raises(ConfigError, match=r"finetune\.k=4: must be at most 3: VisionTransformer has 2 blocks"):
        trained(LastK(4))
    with pytest.raises(ConfigError, match=r"finetune\.k=0: must be a whole number of at least 1"):
        LastK(0)


@pytest.mark.parametrize(
    ("name", "shared"),
    [("vit_small_patch16_rope_mixed_224", "rope."), ("vit_srelpos_small_patch16_224", "shared_rel_pos.")],
)
def test_positions_that_all_blocks_share_are_trained_with_the_embedding(name, shared):
    spec = ModelSpec(name, 10, 32, kwargs={"depth": 2})
    last, everything = trained(LastK(1), spec), trained(FULL, spec)
    assert {name for name in everything if name.startswith(("blocks.1.", "norm.", "fc_norm.", "head."))} == last
    assert any(name.startswith(shared) for name in everything)
    assert trained(LastK(3), spec) == everything


def test_patches_of_a_later_stage_are_trained_with_its_blocks():
    spec = ModelSpec("twins_pcpvt_small", 10, 32)
    assert "patch_embeds.3.proj.weight" in trained(LastK(3), spec)
    assert "patch_embeds.3.proj.weight" not in trained(LastK(2), spec)


@pytest.mark.parametrize("recipe", [FULL, Head(), Bias(), Norm(), LastK()])
def test_a_part_changes_no_weight_and_no_output(recipe):
    bare, prepared = NANO.build(0), Architecture(NANO, finetune=recipe).build()
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(bare(images), prepared(images))
    assert find_roles(bare) == find_roles(prepared)
    assert recipe.resting(prepared).keys() == bare.state_dict().keys() - trained(recipe)


def test_what_was_frozen_before_stays_frozen():
    model = NANO.build(0)
    model.head.bias.requires_grad_(False)
    prepared = Head().prepare(model)
    assert {name for name, p in prepared.named_parameters() if p.requires_grad} == {"head.weight"}


def test_norms_of_a_convolutional_network():
    assert {name.rpartition(".")[0] for name in trained(Norm(head=False), ModelSpec("resnet18", 5))} == {
        name
        for name, one in ModelSpec("resnet18", 5).build(0).named_modules()
        if type(one).__name__.startswith("BatchNorm")
    }


def test_a_model_without_the_part_is_refused():
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2, bias=False))
    with pytest.raises(
        ConfigError, match="finetune=head: must be a model whose classifier is a linear layer, Sequential"
    ):
        Head().prepare(copy.deepcopy(plain))
    with pytest.raises(
        ConfigError, match=r"finetune=last_k: must be a model of timm's, which tells its blocks: Sequential"
    ):
        LastK().prepare(copy.deepcopy(plain))
    with pytest.raises(ConfigError, match="finetune=norm: must be a model with norm layers, Sequential has none"):
        Norm().prepare(copy.deepcopy(plain))
    with pytest.raises(ConfigError, match="finetune=bias: must be a model with biases, Sequential has none"):
        Bias().prepare(copy.deepcopy(plain))


@pytest.mark.parametrize("recipe", [FULL, Head(), Bias(head=False), Norm(), LastK(2)])
def test_records_come_back(recipe):
    assert recorded_finetune(recipe.to_record()) == recipe


def test_a_record_imports_nothing():
    assert recorded_finetune(None) is FULL
    for target in ("os.system", "fedsim.models.finetune.recipe.Finetune", Finetune.__name__):
        with pytest.raises(ConfigError, match="a loaded subclass of Finetune"):
            recorded_finetune({"_target_": target})
