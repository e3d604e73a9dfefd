import pytest
import torch

from defenses import DefenseChain, FixedPositionEmbedding, NoPositionEmbedding, WithholdPositionEmbedding
from fedsim.effects import ForgetsPositions
from fedsim.errors import ConfigError
from fedsim.models import Architecture, ModelSpec, find_roles
from fedsim.models.zoo.april import sincos_position_embedding
from fedsim.update import Update

MODELS = {
    "stock": ModelSpec("vit_tiny_patch16_224", 5, 32, 8, kwargs={"depth": 1}),
    "distilled": ModelSpec("deit_tiny_distilled_patch16_224", 5, 32, 8, kwargs={"depth": 1}),
    "no_embed_class": ModelSpec("deit3_small_patch16_224", 5, 32, 8, kwargs={"depth": 1}),
    "eva": ModelSpec("vit_small_patch16_rope_ape_224", 5, 32, 8, kwargs={"depth": 1}),
}


def gradients(model):
    torch.manual_seed(0)
    side = model.patch_embed.img_size[0]
    model.train()(torch.randn(2, 3, side, side)).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_sincos_is_frozen_stays_in_the_state_and_is_maes_embedding(name):
    model = FixedPositionEmbedding("sincos").wrap_model(MODELS[name].build(0))
    roles = find_roles(model)
    assert roles.pos_embed == "pos_embed"
    assert not model.pos_embed.requires_grad
    expected = sincos_position_embedding(roles.grid, model.embed_dim, roles.embedded_prefix_tokens)
    torch.testing.assert_close(model.state_dict()["pos_embed"][0].double(), expected, atol=1e-6, rtol=0)
    shared = gradients(model)
    assert "pos_embed" not in shared
    assert "patch_embed.proj.weight" in shared


def test_frozen_keeps_the_values():
    before, after = MODELS["stock"].build(0), FixedPositionEmbedding("frozen").wrap_model(MODELS["stock"].build(0))
    assert torch.equal(before.pos_embed, after.pos_embed)
    assert not after.pos_embed.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_no_pe_removes_the_embedding_and_the_model_still_runs(name):
    spec = MODELS[name]
    model = Architecture(spec, (NoPositionEmbedding(),)).build()
    assert find_roles(model).pos_embed is None
    assert "pos_embed" not in model.state_dict()
    assert "pos_embed" not in gradients(model)
    Architecture(spec, (NoPositionEmbedding(),), seed=1).build().load_state_dict(model.state_dict())


def test_no_pe_makes_the_order_of_patches_irrelevant():
    picture = torch.randn(1, 3, 32, 32)
    shuffled = torch.cat([picture[..., 16:, :], picture[..., :16, :]], dim=2)
    stock, without = MODELS["stock"].build(0).eval(), NoPositionEmbedding().wrap_model(MODELS["stock"].build(0)).eval()
    torch.testing.assert_close(without(picture), without(shuffled), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(stock(picture), stock(shuffled), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_order_is_forgotten_where_no_other_positions_remain(name):
    defense = NoPositionEmbedding()
    assert defense.effects() == (ForgetsPositions(),)
    defense.wrap_model(MODELS[name].build(0))
    assert defense.effects() == (() if name == "eva" else (ForgetsPositions(),))


@pytest.mark.parametrize(
    ("spec", "forgotten"),
    [
        (ModelSpec("pit_ti_224", 5), False),
        (ModelSpec("vit_tiny_r_s16_p8_224", 5, 32, kwargs={"depth": 1}), False),
        (ModelSpec("vit_tiny_patch16_224", 5, 32, 8, kwargs={"depth": 1, "embed_norm_layer": "layernorm"}), True),
    ],
)
def test_the_order_stays_where_a_stem_tells_patches_apart(spec, forgotten):
    defense = NoPositionEmbedding()
    defense.wrap_model(spec.build(0))
    assert bool(defense.effects()) == forgotten


@pytest.mark.parametrize("projection", [{"stride": 4, "padding": 2}, {"stride": 8, "padding": 4}])
def test_the_order_stays_where_patches_overlap_or_are_padded(projection):
    defense, model = NoPositionEmbedding(), MODELS["stock"].build(0)
    model.patch_embed.proj = torch.nn.Conv2d(3, model.embed_dim, 8, **projection)
    defense.wrap_model(model)
    assert defense.effects() == ()


def test_withheld_is_trained_but_not_shared():
    chain = DefenseChain({"withhold_pe": WithholdPositionEmbedding()})
    model = chain.wrap_model(MODELS["stock"].build(0))
    shared = gradients(model)
    assert "pos_embed" in shared
    update = Update(shared, "gradient", 2)
    sent = chain.transform_update(update, torch.Generator())
    assert set(update.tensors) - set(sent.tensors) == {"pos_embed"}
    assert sent.withheld == {"pos_embed": "withhold_pe"}
    assert all(sent.tensors[name] is update.tensors[name] for name in sent.tensors)


def test_withheld_without_wrap_model_shares_nothing_by_accident():
    with pytest.raises(RuntimeError, match="wrap_model"):
        WithholdPositionEmbedding().transform_update(
            Update({"pos_embed": torch.ones(1)}, "gradient", 1), torch.Generator()
        )


def test_chain_keeps_book_and_drops_zero_deltas_of_frozen_parameters():
    chain = DefenseChain({"fixed_pe": FixedPositionEmbedding()})
    chain.wrap_model(MODELS["stock"].build(0))
    update = Update({"pos_embed": torch.zeros(2), "head.bias": torch.ones(5)}, "delta", 1)
    sent = chain.transform_update(update, torch.Generator())
    assert set(sent.tensors) == {"head.bias"}
    assert sent.withheld["pos_embed"] == "fixed_pe"
    assert set(update.tensors) == {"pos_embed", "head.bias"}


@pytest.mark.parametrize("defense", [FixedPositionEmbedding(), WithholdPositionEmbedding(), NoPositionEmbedding()])
def test_models_without_the_embedding_are_refused_by_name(defense):
    for spec in (ModelSpec("vit_small_patch16_rope_224", 5, 32, kwargs={"depth": 1}), ModelSpec("resnet18", 5)):
        with pytest.raises(
            ConfigError, match=f"_pe: must be a model with a position embedding, which {spec.name} has not"
        ):
            defense.wrap_model(spec.build(0))


def test_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"defense\.fixed_pe\.kind=sinus: must be one of sincos, frozen"):
        FixedPositionEmbedding("sinus")
