import math
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_sample_images

from attacks.analytic import PatchGradient
from defenses import FixedPositionEmbedding, GradientClip, GradientNoise, NoPositionEmbedding, WithholdPositionEmbedding
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec

PLAIN = PatchGradient(rcond=0.0)
"""Every singular value is used, as the published figures are."""


@pytest.fixture(scope="module")
def clean(tools):
    return tools.observe(tools.tiny(), tools.detailed(), [3])


def test_one_picture_is_exact_and_certified(clean, tools, rng, cpu):
    result = PatchGradient()(clean, rng, cpu)
    assert result.images.shape == (1, 3, 32, 32)
    assert tools.psnr(result.images, tools.detailed()) >= 120
    assert result.certificate.certified, result.certificate.reason
    assert result.certificate.values["residual"] < 1e-6
    assert result.certificate.values["identity"] < 1e-6
    assert result.certificate.values["class_token"] < 1e-6
    assert result.certificate.values["rank"] == 64
    assert result.labels.tolist() == [3]


def test_cross_validation_uses_everything_of_a_clean_gradient(tools, rng, cpu):
    for image in tools.photographs(32):
        observation = tools.observe(tools.tiny(kwargs={"depth": 4}), image[None], [1])
        chosen, everything = PatchGradient()(observation, rng, cpu), PLAIN(observation, rng, cpu)
        assert torch.equal(chosen.images, everything.images)


@pytest.fixture(scope="module")
def square(tools):
    """Of a model that is as wide as it has patches, and its picture."""
    picture = tools.detailed(1, 8)
    spec = ModelSpec("vit_nano_patch2_8", 10, kwargs={"embed_dim": 16, "norm_layer": "rmsnorm"})
    return tools.observe(spec, picture, [3]), picture


def test_as_many_patches_as_the_model_is_wide(square, tools, rng, cpu):
    observation, picture = square
    result = PatchGradient()(observation, rng, cpu)
    assert tools.psnr(result.images, picture) > 100
    assert result.certificate.values["rank"] == 16
    assert not result.certificate.certified
    behind = replace(observation, defenses=({"name": "any"},))
    assert PatchGradient()(behind, rng, cpu).certificate.values["rank"] < 16


def test_a_patch_projection_that_was_not_trained_is_refused(square, rng, cpu):
    observation, _ = square
    tensors = dict(observation.update.tensors)
    tensors["patch_embed.proj.weight"] = torch.zeros_like(tensors["patch_embed.proj.weight"])
    frozen = replace(observation, update=replace(observation.update, tensors=tensors))
    with pytest.raises(NotApplicable, match="patch_weight's gradient is zero"):
        PatchGradient()(frozen, rng, cpu)


def test_photographs_and_the_predicted_error(tools, imagenet_sample, cifar10_sample, rng, cpu):
    pictures = torch.cat(
        [tools.photographs(32), tools.pictures_in(imagenet_sample, 1, 32), tools.pictures_in(cifar10_sample, 2, 32)]
    )
    figures = []
    for number, picture in enumerate(pictures):
        observation = tools.observe(tools.tiny(), picture[None], [number % 10])
        result = PatchGradient(levels=None)(observation, rng, cpu)
        figures.append(tools.psnr(result.images, picture[None]))
        assert result.certificate.certified, result.certificate.reason
        assert result.certificate.values["expected_psnr"] == pytest.approx(figures[-1], abs=4)
        assert result.labels.tolist() == [number % 10]
    assert min(figures) > 80
    assert max(figures) > 100


def test_pictures_from_files_are_exact_to_the_last_pixel(tools, imagenet_sample, cifar10_sample, rng, cpu):
    for picture in torch.cat([tools.pictures_in(imagenet_sample, 1, 32), tools.pictures_in(cifar10_sample, 2, 32)]):
        picture = (picture * 255).round() / 255
        result = PatchGradient()(tools.observe(tools.tiny(kwargs={"depth": 4}), picture[None], [1]), rng, cpu)
        assert torch.equal((result.images * 255).round(), (picture[None] * 255).round().to(result.images))
        assert tools.psnr(result.images, picture[None]) > 130
        assert "whole pixel levels" in result.certificate.reason


def test_float64_gradients_are_exact_to_the_last_bit_of_a_float32_picture(tools, rng, cpu):
    picture = tools.photographs(32)[:1]
    result = PatchGradient()(tools.observe(tools.tiny(dtype="float64"), picture, [3]), rng, cpu)
    assert tools.psnr(result.images, picture) > 150
    assert result.certificate.certified


@pytest.mark.parametrize("batch", [2, 4])
def test_a_batch_gives_one_uncertified_mixture(batch, tools, rng, cpu):
    pictures = torch.cat([tools.photographs(32), tools.detailed(2)])[:batch]
    result = PatchGradient()(tools.observe(tools.tiny(), pictures, list(range(batch))), rng, cpu)
    assert result.images.shape[0] == 1
    assert result.certificate.status == "uncertified"
    assert f"one mixture of the {batch} images" in result.certificate.reason
    assert result.certificate.values["residual"] > 0.01
    assert result.certificate.values["identity"] < 1e-6
    assert result.labels is None


def test_similar_pictures_are_not_certified_either(tools, rng, cpu):
    picture = tools.photographs(32)[:1]
    noise = torch.randn(picture.shape, generator=rng, dtype=torch.float64)
    pair = torch.cat([picture, (picture + 0.02 * noise).clamp(0, 1)])
    assert not PatchGradient()(tools.observe(tools.tiny(), pair, [1, 1]), rng, cpu).certificate.certified


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize("shift", [1, 2])
def test_two_crops_of_one_photograph_are_not_certified(patch_size, shift, tools, rng, cpu):
    """Their mean satisfies the equations to second order in their difference: 78 to 89 dB expected of 54 to 56."""
    photograph = torch.from_numpy(load_sample_images().images[0].copy()).permute(2, 0, 1).double() / 255
    pair = torch.stack([photograph[:, 40:72, left : left + 32] for left in (60, 60 + shift)])
    result = PatchGradient()(tools.observe(tools.tiny(patch_size=patch_size), pair, [3, 3]), rng, cpu)
    assert max(tools.psnr(result.images[0], picture) for picture in pair) < 60
    assert not result.certificate.certified
    assert result.certificate.reason.startswith("2 images behind the update")
    assert "expected_psnr" not in result.certificate.values


def test_a_mean_of_whole_levels_is_not_certified(tools, rng, cpu):
    """Pictures an even number of levels apart: their mean lies on whole levels too, and neither picture is it."""
    levels = (tools.photographs(32)[:1] * 255).round().clamp(2, 253)
    apart = 2.0 * torch.randint(-1, 2, levels.shape, generator=rng)
    pair = torch.cat([levels, levels + apart]) / 255
    result = PatchGradient()(tools.observe(tools.tiny(patch_size=8), pair, [3, 3]), rng, cpu)
    assert not result.certificate.certified


def test_a_random_gradient_is_worth_nothing(clean, tools, rng, cpu):
    result = PatchGradient()(tools.random_gradient(clean), rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) < 20
    assert not result.certificate.certified
    assert "residual" in result.certificate.reason


@pytest.mark.parametrize(("relative_norm", "decibel"), [(1e-6, 91), (1e-4, 51), (1e-3, 32)])
def test_noise(relative_norm, decibel, tools, rng, cpu):
    defenses = {"gradient_noise": GradientNoise(relative_norm=relative_norm)}
    observation = tools.observe(tools.tiny(kwargs={}), tools.detailed(), [3], defenses=defenses)
    result = PLAIN(observation, rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) == pytest.approx(decibel, abs=3)
    assert result.certificate.status == "uncertified", "noise cannot be computed once more"


def test_cross_validation_gains_under_noise(tools, rng, cpu):
    picture = tools.photographs(32)[:1]
    observation = tools.observe(tools.tiny(), picture, [3], defenses={"noise": GradientNoise(relative_norm=1e-3)})
    chosen, everything = PatchGradient()(observation, rng, cpu), PLAIN(observation, rng, cpu)
    assert tools.psnr(chosen.images, picture) > tools.psnr(everything.images, picture) + 6
    assert not chosen.certificate.certified


@pytest.mark.parametrize("kind", ["delta", "weights"])
@pytest.mark.parametrize(("lr", "decibel"), [(0.1, 99), (0.01, 79), (0.001, 58), (0.0001, 40)])
def test_delta_of_one_sgd_step(kind, lr, decibel, tools, rng, cpu):
    observation = tools.observe(tools.tiny(), tools.detailed(), [3], lr=lr, kind=kind)
    result = PLAIN(observation, rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) == pytest.approx(decibel, abs=5)
    assert result.certificate.certified == (lr > 0.001)
    if result.certificate.certified:
        assert tools.psnr(result.images, tools.detailed()) >= result.certificate.values["promised_psnr"]
    assert result.labels.tolist() == [3]


def test_delta_of_ten_sgd_steps(tools, rng, cpu):
    observation = tools.observe(tools.tiny(kwargs={"depth": 4}), tools.detailed(), [3], lr=0.01, steps=10)
    assert tools.psnr(PatchGradient()(observation, rng, cpu).images, tools.detailed()) > 60


def test_clipping_changes_nothing(clean, tools, rng, cpu):
    clipped = tools.observe(tools.tiny(), tools.detailed(), [3], defenses={"clip": GradientClip(1.0)})
    assert not torch.equal(clipped.gradient_of("pos_embed"), clean.gradient_of("pos_embed"))
    result = PatchGradient()(clipped, rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) > 120
    assert result.certificate.certified


def test_more_patches_than_width(tools, rng, cpu):
    picture = tools.photographs(224)[:1]
    observation = tools.observe(ModelSpec("vit_tiny_patch16_224", 10, kwargs={"depth": 4}), picture, [3])
    result = PatchGradient()(observation, rng, cpu)
    assert tools.psnr(result.images, picture) >= 40
    assert result.certificate.reason == "196 patch tokens > width 192: one solution of many"


ANATOMIES = {
    "vit_base_patch32_224": {"img_size": 96, "embed_dim": 192, "num_heads": 3},
    "deit_small_distilled_patch16_224": {"img_size": 96},
    "deit3_small_patch16_224": {"img_size": 96, "init_values": 1.0},
    "vit_small_patch16_224": {"img_size": 96, "global_pool": "avg"},
    "vit_base_patch16_clip_224": {"img_size": 96, "embed_dim": 192, "num_heads": 3},
    "vit_base_patch16_siglip_gap_224": {"img_size": 96, "embed_dim": 192, "num_heads": 3},
    "vit_small_patch16_rope_ape_224": {"img_size": 96},
    "cait_xxs24_224": {"img_size": 96, "init_values": 1.0},
    "test_vit": {"img_size": 96, "num_heads": 2, "embed_dim": 128},
}


@pytest.mark.parametrize("name", ANATOMIES)
def test_whatever_comes_after_the_token(name, tools, rng, cpu):
    kwargs = dict(ANATOMIES[name])
    spec = ModelSpec(name, 10, img_size=kwargs.pop("img_size"), kwargs={"depth": 2, **kwargs})
    picture = tools.detailed(1, 96)
    result = PatchGradient()(tools.observe(spec, picture, [3]), rng, cpu)
    assert tools.psnr(result.images, picture) > 60
    assert result.certificate.certified, result.certificate.reason


def test_dropout_after_the_embedding_is_harmless(tools, rng, cpu):
    kwargs = {
        "drop_rate": 0.1,
        "pos_drop_rate": 0.1,
        "attn_drop_rate": 0.1,
        "proj_drop_rate": 0.1,
        "drop_path_rate": 0.2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        observation = tools.observe(tools.tiny(kwargs=kwargs), tools.detailed(), [3])
    result = PatchGradient()(observation, rng, cpu)
    assert tools.psnr(result.images, tools.detailed()) > 90
    assert "drew" in result.certificate.reason or "a draw is unknown" in result.certificate.reason


def test_layer_scale_is_badly_conditioned_and_says_so(tools, rng, cpu):
    spec = ModelSpec("vit_little_patch16_reg4_gap_256", 10, img_size=128, kwargs={"depth": 4})
    picture = tools.photographs(128)[:1]
    coarse = PatchGradient()(tools.observe(spec, picture, [3]), rng, cpu)
    assert tools.psnr(coarse.images, picture) < 40
    assert not coarse.certificate.certified
    assert "condition" in coarse.certificate.reason
    assert coarse.certificate.values["condition"] > 1e6
    fine = PatchGradient()(tools.observe(replace(spec, dtype="float64"), picture, [3]), rng, cpu)
    assert tools.psnr(fine.images, picture) > 120


REFUSALS = {
    "fixed_pe": (FixedPositionEmbedding(), "pos_embed's gradient is withheld by fixed_pe"),
    "withhold_pe": (WithholdPositionEmbedding(), "pos_embed's gradient is withheld by withhold_pe"),
    "no_pe": (NoPositionEmbedding(), "the model has no pos_embed: removed by no_pe"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses_without_the_embeddings_gradient(name, tools, rng, cpu):
    defense, reason = REFUSALS[name]
    observation = tools.observe(tools.tiny(kwargs={"depth": 2}), tools.detailed(), [3], defenses={name: defense})
    with pytest.raises(NotApplicable) as refusal:
        PatchGradient()(observation, rng, cpu)
    assert str(refusal.value) == reason


def test_refuses_without_the_projections_gradient(clean, rng, cpu):
    tensors = {name: t for name, t in clean.update.tensors.items() if name != "patch_embed.proj.weight"}
    update = replace(clean.update, tensors=tensors, withheld={"patch_embed.proj.weight": "mine"})
    with pytest.raises(NotApplicable, match=r"patch_embed\.proj\.weight's gradient is withheld by mine"):
        PatchGradient()(replace(clean, update=update), rng, cpu)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ModelSpec("resnet18", 10), "has no patch embedding"),
        (ModelSpec("vit_small_patch16_rope_224", 10, img_size=32, kwargs={"depth": 1}), "the model has no pos_embed"),
        (ModelSpec("vit_tiny_patch16_224", 10, img_size=32, kwargs={"depth": 1, "patch_drop_rate": 0.5}), "dropout"),
    ],
)
def test_refuses_other_architectures(spec, reason, tools, rng, cpu):
    side = 224 if spec.img_size is None else spec.img_size
    observation = tools.observe(spec, tools.detailed(2, side), [3, 4])
    with pytest.raises(NotApplicable, match=reason):
        PatchGradient()(observation, rng, cpu)


def test_refuses_resampled_embeddings_and_adaptive_optimisers(clean, rng, cpu):
    with pytest.raises(NotApplicable, match="resampled"):
        PatchGradient()(replace(clean, image_shape=(3, 64, 64)), rng, cpu)
    adam = replace(
        clean, update=replace(clean.update, kind="delta"), protocol=replace(clean.protocol, optimizer="adamw")
    )
    with pytest.raises(NotApplicable, match="adamw"):
        PatchGradient()(adam, rng, cpu)


@pytest.mark.parametrize(("value", "reason"), [(0.0, "is zero"), (float("nan"), "not finite")])
def test_refuses_gradients_that_hold_nothing(value, reason, clean, rng, cpu):
    tensors = {**clean.update.tensors, "pos_embed": torch.full_like(clean.update.tensors["pos_embed"], value)}
    with pytest.raises(NotApplicable, match=reason):
        PatchGradient()(replace(clean, update=replace(clean.update, tensors=tensors)), rng, cpu)


@pytest.mark.parametrize("name", ["patch_embed.proj.bias", "cls_token"])
def test_a_spoilt_test_of_the_solution_certifies_nothing(name, clean, rng, cpu):
    tensors = {**clean.update.tensors, name: torch.full_like(clean.update.tensors[name], torch.nan)}
    result = PatchGradient(levels=None)(replace(clean, update=replace(clean.update, tensors=tensors)), rng, cpu)
    assert not result.certificate.certified
    assert all(math.isfinite(number) for number in result.certificate.values.values())


def test_without_the_head_bias_the_weight_tells_the_label(clean, rng, cpu):
    tensors = {name: t for name, t in clean.update.tensors.items() if name != "head.bias"}
    result = PatchGradient()(replace(clean, update=replace(clean.update, tensors=tensors)), rng, cpu)
    assert torch.equal(result.labels, PatchGradient()(clean, rng, cpu).labels)
    assert result.certificate.certified


def test_replay_is_bit_equal(clean, rng, cpu):
    first, second = PatchGradient()(clean, rng, cpu), PatchGradient()(clean, rng, cpu)
    assert torch.equal(first.images, second.images)
    assert first.certificate == second.certificate


@pytest.mark.gpu
def test_the_same_on_a_gpu(clean, tools, rng):
    result = PatchGradient()(clean, rng, torch.device("cuda"))
    assert tools.psnr(result.images, tools.detailed()) >= 120
    assert result.certificate.certified


def test_its_localisation_is_subtracted_or_kept():
    with pytest.raises(ConfigError, match=r"attack\.patch_gradient\.localisation=drop: must be subtract or keep"):
        PatchGradient(localisation="drop")
