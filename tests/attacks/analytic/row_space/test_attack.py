from dataclasses import replace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import fedsim
from attacks.analytic import RowSpace
from attacks.analytic.first_block import FirstBlock
from attacks.analytic.linear.patches import unpatchify
from attacks.analytic.row_space.attack import batch_subspace, gradient_spaces, make_readers
from attacks.analytic.row_space.completion import patchify
from attacks.analytic.row_space.subspace import row_space
from defenses import FixedPositionEmbedding, NoPositionEmbedding, WithholdPositionEmbedding
from fedsim.errors import ConfigError, NotApplicable
from fedsim.metrics import psnr
from fedsim.models import Architecture, ModelSpec

FROZEN = {"fixed_pe": FixedPositionEmbedding("frozen")}
WITHHELD = {"withhold_pe": WithholdPositionEmbedding()}
LINEAR = RowSpace(later=0, levels=None)


def small(tools, **settings):
    """16 patch tokens, width 192."""
    return tools.tiny(patch_size=8, **{"kwargs": {"depth": 2}, "dtype": "float64", **settings})


@pytest.fixture(scope="module")
def clean(tools):
    return tools.observe(small(tools), tools.detailed(), [3], defenses=WITHHELD)


@pytest.mark.parametrize("defenses", [WITHHELD, FROZEN])
def test_float64_is_exact_and_certified(defenses, tools, rng, cpu):
    observation = tools.observe(small(tools), tools.detailed(), [3], defenses=defenses)
    assert "pos_embed" not in observation.update.tensors
    result = LINEAR(observation, rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) > 150
    assert result.certificate.certified, result.certificate.reason


def test_random_scale_and_shift(tools, rng, cpu):
    """σ_n is an unknown wherever β is not zero."""
    spec = small(tools)
    model = spec.build(0)
    with torch.no_grad():
        noise = torch.Generator().manual_seed(3)
        for part, std in ((model.blocks[0].norm1.weight, 0.2), (model.blocks[0].norm1.bias, 0.1)):
            part.add_(std * torch.randn(part.shape, generator=noise, dtype=part.dtype))

    class Drawn(WithholdPositionEmbedding):
        @property
        def repeatable(self):
            return True

        def effects(self):
            return super().effects()

        def wrap_model(self, wrapped):
            wrapped.load_state_dict(model.state_dict())
            return super().wrap_model(wrapped)

    observation = tools.observe(spec, tools.detailed(), [3], defenses={"withhold_pe": Drawn()})
    result = LINEAR(observation, rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) > 150
    assert result.certificate.certified


def test_float32_and_whole_levels(tools, rng, cpu):
    picture = (tools.photographs(32)[:1] * 255).round() / 255
    observation = tools.observe(small(tools, dtype="float32"), picture, [3], defenses=WITHHELD)
    plain, rounded = LINEAR(observation, rng, cpu), RowSpace()(observation, rng, cpu)
    assert tools.psnr(plain.images, picture) > 60
    assert torch.equal((rounded.images * 255).round(), (picture * 255).round())
    assert rounded.certificate.certified
    assert "whole pixel levels" in rounded.certificate.reason


def test_later_projections_gain(tools, rng, cpu):
    picture = tools.photographs(24)[:1]
    observation = tools.observe(tools.tiny(img_size=24, kwargs={"depth": 4}), picture, [3], defenses=WITHHELD)
    plain, refined = LINEAR(observation, rng, cpu), RowSpace(levels=None)(observation, rng, cpu)
    assert tools.psnr(refined.images, picture) > tools.psnr(plain.images, picture) + 6


def test_a_batch_lies_in_its_subspace_and_is_not_certified(tools, rng, cpu):
    pair = torch.cat([tools.detailed(), tools.photographs(32)[:1]])
    observation = tools.observe(small(tools), pair, [3, 4], defenses=WITHHELD)
    base, directions = batch_subspace(observation, cpu)
    assert directions.shape == (192, 16)
    for image in pair:
        normalised = (image[None] - 0.5) / 0.5
        rest = patchify(normalised, (8, 8)) - base
        assert (rest - rest @ directions @ directions.T).abs().max() < 1e-3
    assert not RowSpace()(observation, rng, cpu).certificate.certified


def test_local_steps_on_different_pictures_are_no_single_picture(tools, rng, cpu):
    """Steps so small that the weights stand still: the update is that of a batch."""
    pictures = tools.photographs(32)
    pair = torch.stack([pictures[0], torch.lerp(pictures[0], pictures[1], 1e-3)])
    batch = tools.observe(small(tools), pair, [3, 3], defenses=WITHHELD)
    steps = replace(batch, protocol=replace(batch.protocol, batch_size=1, steps=2))
    found, expected = RowSpace()(steps, rng, cpu), RowSpace()(batch, rng, cpu)
    assert torch.equal(found.images, expected.images)
    assert not found.certificate.certified
    assert found.certificate.reason.startswith("2 images behind the update")
    assert torch.equal(batch_subspace(steps, cpu)[1], batch_subspace(batch, cpu)[1])


def test_one_picture_has_no_free_direction(clean, tools, cpu):
    base, directions = batch_subspace(clean, cpu)
    assert directions.shape[1] == 0
    assert tools.psnr(unpatchify(base, (4, 4), (8, 8)) * 0.5 + 0.5, tools.detailed()) > 150


def test_a_second_table_of_embeddings_counts(indexed, tools, rng, cpu):
    """In the linear system, and in the class token that later projections read."""
    picture = tools.photographs(32)[:1]
    observation = tools.observe(small(tools, kwargs={"depth": 4}), picture, [3], defenses=indexed)
    assert tools.psnr(LINEAR(observation, rng, cpu).images, picture) > 150
    readers = make_readers(observation, gradient_spaces(observation, cpu), 2)
    truth = patchify((picture - 0.5) / 0.5, (8, 8))
    for u, space in zip(readers.inputs(truth), readers.spaces, strict=True):
        assert (u @ space.null.T).norm() < 1e-10 * u.norm()


def test_a_random_gradient_is_worth_nothing(clean, tools, rng, cpu):
    result = RowSpace(later=1)(tools.random_gradient(clean), rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) < 15
    assert not result.certificate.certified


def test_replay_is_bit_equal(clean, rng, cpu):
    first, second = RowSpace()(clean, rng, cpu), RowSpace()(clean, rng, cpu)
    assert torch.equal(first.images, second.images)
    assert first.certificate == second.certificate


def test_refusals(clean, tools, rng, cpu):
    without = {n: t for n, t in clean.update.tensors.items() if n != "blocks.0.attn.qkv.weight"}
    with pytest.raises(NotApplicable, match=r"qkv\.weight's gradient is withheld"):
        RowSpace()(replace(clean, update=replace(clean.update, tensors=without)), rng, cpu)
    orderless = tools.observe(small(tools), tools.detailed(), [3], defenses={"no_pe": NoPositionEmbedding()})
    with pytest.raises(NotApplicable, match="removed by no_pe"):
        RowSpace()(orderless, rng, cpu)
    crowded = tools.observe(
        ModelSpec("vit_tiny_patch16_224", 10, kwargs={"depth": 1}), tools.detailed(1, 224), [3], defenses=WITHHELD
    )
    with pytest.raises(NotApplicable, match="197 tokens >= width 192"):
        RowSpace()(crowded, rng, cpu)
    direct = tools.observe(small(tools, variant="april"), tools.detailed(), [3], defenses=WITHHELD)
    with pytest.raises(NotApplicable, match="april"):
        RowSpace()(direct, rng, cpu)


def test_a_norms_bias_may_take_the_last_equation(tools, rng, cpu):
    spec = ModelSpec("vit_nano_patch2_8", 10, dtype="float64", kwargs={"embed_dim": 18, "num_heads": 2})
    model = spec.build(0)
    torch.nn.init.normal_(model.blocks[0].norm1.bias)
    seen = tools.observe(spec, tools.detailed(1, 8), [3], model=model)
    for attack in (RowSpace(), FirstBlock()):
        with pytest.raises(NotApplicable, match="no equation is left"):
            attack(seen, rng, cpu)


@pytest.mark.parametrize("settings", [{"later": -1}, {"levels": 0}])
def test_refuses_settings(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RowSpace(**settings)


def test_row_space_separates_signal_from_noise():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 20, generator=rng, dtype=torch.float64)
    mixed = torch.randn(60, 5, generator=rng, dtype=torch.float64) @ rows
    exact = row_space(mixed, 5)
    assert (rows @ exact.null.T).abs().max() < 1e-10
    noisy = row_space(mixed + 1e-4 * torch.randn(60, 20, generator=rng, dtype=torch.float64), 5)
    found = (rows @ noisy.null.T).square().mean().sqrt()
    assert float(found) == pytest.approx(float(noisy.leak(rows).square().mean().sqrt()), rel=0.3)


def test_embeddings_of_low_rank_are_named(tools, rng, cpu):
    """A sin-cos embedding spans rows + columns dimensions: too few to tell the patches' mixtures apart."""
    defenses = {"fixed_pe": FixedPositionEmbedding("sincos")}
    picture = tools.photographs(32)[:1]
    observation = tools.observe(tools.tiny(kwargs={"depth": 1}), picture, [3], defenses=defenses)
    found = RowSpace(later=0)(observation, rng, cpu)
    assert not found.certificate.certified
    assert "position embeddings span" in found.certificate.reason


@pytest.mark.parametrize(("width", "words"), [(96, ""), (48, "51 tokens in 3 blocks that share their projection")])
def test_blocks_that_share_a_projection_have_all_their_tokens_in_its_gradient(width, words):
    """It was solved for the tokens of one: 12 dB, for a gap in the singular values that noise would have closed."""
    model = VisionTransformer(
        img_size=16, patch_size=4, in_chans=1, embed_dim=width, depth=3, num_heads=3, num_classes=5
    )
    model.blocks[1] = model.blocks[2] = model.blocks[0]
    image = torch.randint(0, 256, (1, 1, 16, 16), generator=torch.Generator().manual_seed(0)) / 255
    seen = fedsim.observe(model.eval(), image, [2])
    found = fedsim.attack("row_space", seen)
    if words:
        assert words in found.reason
        return
    assert found.certificate.certified, found.certificate.reason
    assert psnr(found.images, image.double()).item() > 100
    refused = fedsim.attack("first_block", seen).reason
    assert refused.endswith("is read 3 times: its gradient is not that of the first block")


def test_a_class_token_that_joins_behind_the_blocks_is_none_of_the_first_ones_tokens(rng, cpu):
    """CaiT's: counted among them, one dimension of the row space would be noise."""
    model = ModelSpec("cait_xxs24_224", 5, img_size=32, dtype="float64", kwargs={"depth": 1}).build(0)
    image = torch.rand(1, 3, 32, 32, generator=rng)
    found = LINEAR(fedsim.observe(model, image, [3]), rng, cpu)
    assert found.certificate.certified, found.certificate.reason
    assert "equations to spare" in found.certificate.reason
    assert psnr(found.images, image.double()).item() > 150


@pytest.mark.parametrize("defense", [{}, {"mjp_jp": {"ratio": 0.5}}])
def test_nothing_is_expected_where_each_local_step_may_have_seen_another_image(defense):
    """Patches are shuffled anew in each step: up to 32 dB were expected of 9."""
    torch.manual_seed(0)
    model = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    image = torch.randint(0, 17, (1, 1, 8, 8), generator=torch.Generator().manual_seed(0)).expand(1, 3, 8, 8) / 16
    seen = fedsim.observe(model, image, [3], defense=defense, share="delta", batch_size=1, local_steps=3, lr=0.1)
    certificate = fedsim.attack("row_space", seen).certificate
    told = certificate.reason.startswith("each of 3 local steps may have seen another image")
    assert (told, "expected_psnr" in certificate.values) == (bool(defense), not defense)
