import math
from dataclasses import replace

import pytest
import torch

from attacks.analytic import April
from attacks.analytic.april import patches_of_tokens, solve_tokens
from fedsim.errors import NotApplicable
from fedsim.models import ModelSpec, find_roles

ANATOMIES = {
    "class token": {},
    "average pooling": {"global_pool": "avg"},
    "no class token": {"global_pool": "avg", "class_token": False},
    "class token without embedding": {"no_embed_class": True},
    "registers": {"reg_tokens": 4},
    "registers without embedding": {"reg_tokens": 4, "no_embed_class": True},
    "qk_norm": {"qk_norm": True},
    "no qkv bias": {"qkv_bias": False},
}


def test_tokens_of_one_attention_against_autograd():
    """The equation itself, on a bare attention in float64."""
    torch.manual_seed(0)
    tokens = torch.randn(1, 5, 16, dtype=torch.float64, requires_grad=True)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    out, _ = attention(tokens, tokens, tokens)
    out.sin().sum().backward()
    solution = solve_tokens(tokens.grad[0], attention.in_proj_weight.detach(), attention.in_proj_weight.grad)
    torch.testing.assert_close(solution.patches, tokens.detach()[0], rtol=1e-6, atol=1e-6)


def test_patches_of_tokens_and_the_growth_of_errors():
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 12, generator=rng, dtype=torch.float64)
    patches = torch.randn(7, 12, generator=rng, dtype=torch.float64)
    found, growth = patches_of_tokens(patches @ weight.T, weight)
    torch.testing.assert_close(found, patches)
    noise = torch.randn(20_000, 24, generator=rng, dtype=torch.float64)
    grown, _ = patches_of_tokens(noise, weight)
    assert float(grown.square().mean()) == pytest.approx(growth, rel=0.05)


@pytest.mark.parametrize("anatomy", ANATOMIES)
def test_float64_gradients_give_the_exact_picture(anatomy, tools, rng, cpu):
    spec = tools.tiny(variant="april", dtype="float64", kwargs={"depth": 3, **ANATOMIES[anatomy]})
    picture = tools.photographs(32)[:1]
    result = April()(tools.observe(spec, picture, [3]), rng, cpu)
    assert tools.psnr(result.images, picture) >= 140
    assert result.certificate.values.get("identity", 0.0) < 1e-9
    # Registers start out alike, and without embeddings they stay so: their own tokens cannot be told apart.
    alike = anatomy == "registers without embedding"
    assert result.certificate.certified != alike, result.certificate.reason


def test_class_token_model_at_150_db(tools, rng, cpu):
    for picture in tools.photographs(32):
        observation = tools.observe(tools.tiny(variant="april", dtype="float64"), picture[None], [3])
        assert tools.psnr(April()(observation, rng, cpu).images, picture[None]) >= 150


def test_distilled_model(tools, rng, cpu):
    spec = ModelSpec(
        "deit_tiny_distilled_patch16_224", 10, 32, 4, variant="april", dtype="float64", kwargs={"depth": 6}
    )
    picture = tools.photographs(32)[:1]
    assert tools.psnr(April()(tools.observe(spec, picture, [3]), rng, cpu).images, picture) >= 140


def test_a_second_table_of_embeddings_counts(indexed, tools, rng, cpu):
    picture = tools.photographs(32)[:1]
    spec = tools.tiny(variant="april", dtype="float64", kwargs={"depth": 3})
    assert tools.psnr(April()(tools.observe(spec, picture, [3], defenses=indexed), rng, cpu).images, picture) >= 140


def test_float32_gradients_are_too_coarse_and_it_says_so(tools, rng, cpu):
    for picture in tools.photographs(32):
        result = April()(tools.observe(tools.tiny(variant="april"), picture[None], [3]), rng, cpu)
        assert 20 <= tools.psnr(result.images, picture[None]) <= 36
        assert not result.certificate.certified
        assert "condition" in result.certificate.reason
        assert result.certificate.values["identity"] < 1e-5


def test_larger_patches_than_width_give_the_minimum_norm_picture(tools, rng, cpu):
    spec = ModelSpec("vit_tiny_patch16_224", 10, 64, 16, variant="april", dtype="float64", kwargs={"depth": 3})
    picture = tools.photographs(64)[:1]
    result = April()(tools.observe(spec, picture, [3]), rng, cpu)
    assert 8 < tools.psnr(result.images, picture) < 30
    assert result.certificate.reason == "768 pixels of a patch > width 192: the minimum-norm patches"


def test_a_batch_and_a_random_gradient_are_uncertified(tools, rng, cpu):
    spec = tools.tiny(variant="april", dtype="float64", kwargs={"depth": 3})
    pictures = tools.photographs(32)
    batch = April()(tools.observe(spec, pictures, [3, 4]), rng, cpu)
    assert not batch.certificate.certified
    assert "one mixture of the 2 images" in batch.certificate.reason
    spec = replace(spec, kwargs={"depth": 3, "qkv_bias": False})
    noise = tools.random_gradient(tools.observe(spec, pictures[:1], [3]))
    result = April()(noise, rng, cpu)
    assert tools.psnr(result.images, pictures[:1]) < 20
    assert not result.certificate.certified


def test_nearly_alike_pictures_are_not_certified(tools, rng, cpu):
    pictures = tools.photographs(32)
    pair = torch.stack([pictures[0], torch.lerp(pictures[0], pictures[1], 1e-5)])
    spec = tools.tiny(variant="april", dtype="float64", kwargs={"depth": 3})
    certificate = April()(tools.observe(spec, pair, [3, 3]), rng, cpu).certificate
    assert not certificate.certified
    assert certificate.reason.startswith("2 images behind the update")


def test_refuses_a_pre_norm_model(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs={"depth": 2}), tools.detailed(), [3])
    with pytest.raises(NotApplicable, match=r"a norm before it.*model\.variant=april"):
        April()(observation, rng, cpu)


def test_where_roles_are_wrong_nothing_is_certified(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs={"depth": 2}), tools.detailed(), [3])
    mistaken = replace(observation, roles=replace(observation.roles, direct_attention=True))
    certificate = April()(mistaken, rng, cpu).certificate
    assert not certificate.certified
    assert certificate.values["identity"] > 0.5


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_a_bias_that_the_formula_does_not_read_costs_the_certificate_alone(value, tools, rng, cpu):
    picture = tools.photographs(32)[:1]
    observation = tools.observe(tools.tiny(variant="april", dtype="float64", kwargs={"depth": 2}), picture, [3])
    tensors, bias = observation.update.tensors, "blocks.0.attn.qkv.bias"
    spoilt = {**tensors, bias: torch.full_like(tensors[bias], value)}
    result = April()(replace(observation, update=replace(observation.update, tensors=spoilt)), rng, cpu)
    assert tools.psnr(result.images, picture) >= 140
    assert not result.certificate.certified
    assert "W_qkvᵀ ∂L/∂b_qkv" in result.certificate.reason
    assert all(math.isfinite(number) for number in result.certificate.values.values())


@pytest.mark.parametrize("missing", ["pos_embed", "blocks.0.attn.qkv.weight", "cls_token"])
def test_refuses_withheld_gradients(missing, tools, rng, cpu):
    spec = tools.tiny(variant="april", kwargs={"depth": 2, "no_embed_class": True})
    observation = tools.observe(spec, tools.detailed(), [3])
    tensors = {name: t for name, t in observation.update.tensors.items() if name != missing}
    update = replace(observation.update, tensors=tensors, withheld={missing: "mine"})
    with pytest.raises(NotApplicable, match=f"{missing}'s gradient is withheld by mine"):
        April()(replace(observation, update=update), rng, cpu)


@pytest.mark.parametrize(("kwargs", "more"), [({}, set()), ({"no_embed_class": True}, {"cls_token"})])
def test_what_the_formula_does_not_read_may_be_withheld_or_spoilt(kwargs, more, tools, rng, cpu):
    spec = tools.tiny(variant="april", dtype="float64", kwargs={"depth": 2, **kwargs})
    observation = tools.observe(spec, tools.photographs(32)[:1], [3])
    read = {"pos_embed", "blocks.0.attn.qkv.weight", *more}
    tensors = {name: tensor for name, tensor in observation.update.tensors.items() if name in read}
    alone = replace(observation, update=replace(observation.update, tensors=tensors))
    spoilt = {**observation.update.tensors, "patch_embed.proj.weight": torch.full((192, 3, 4, 4), torch.nan)}
    beside = replace(observation, update=replace(observation.update, tensors=spoilt))
    expected = April()(observation, rng, cpu)
    for given in (alone, beside):
        found = April()(given, rng, cpu)
        assert torch.equal(found.images, expected.images)
        assert found.certificate.certified == (given is alone), "what was spoilt does not come out the same again"


@pytest.mark.parametrize("spoilt", ["pos_embed", "cls_token", "blocks.0.attn.qkv.weight"])
def test_refuses_gradients_that_are_not_finite(spoilt, tools, rng, cpu):
    spec = tools.tiny(variant="april", kwargs={"depth": 2, "no_embed_class": True})
    observation = tools.observe(spec, tools.photographs(32)[:1], [3])
    tensors = observation.update.tensors
    tensors = {**tensors, spoilt: torch.full_like(tensors[spoilt], torch.inf)}
    with pytest.raises(NotApplicable, match=f"{spoilt}'s gradient is not finite"):
        April()(replace(observation, update=replace(observation.update, tensors=tensors)), rng, cpu)


def test_roles_name_the_prefix_in_order():
    spec = ModelSpec("vit_tiny_patch16_224", 10, 32, 4, kwargs={"reg_tokens": 2, "depth": 1})
    assert find_roles(spec.build(0)).prefix_names == ("cls_token", "reg_token")
