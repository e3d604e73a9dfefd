from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.analytic import MJPAdaptive, PatchGradient
from attacks.analytic.mjp.attack import masked_positions, take_apart
from defenses import Batch, MaskedJigsawPuzzle
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import Architecture, ModelSpec


def masked_observation(tools, picture, ratio=0.2):
    spec = tools.tiny(kwargs={"depth": 2}, dtype="float64")
    mjp = MaskedJigsawPuzzle(ratio, min_block=4)
    mjp.wrap_model(spec.build(0))
    seen = mjp.transform_batch(Batch(picture, torch.tensor([3])), torch.Generator().manual_seed(2)).images
    mask = torch.zeros(64, dtype=torch.bool) if mjp._pending is None else mjp._pending[0]
    return tools.observe(spec, seen, [3], defenses={"mjp": mjp}), seen, mask


@pytest.fixture(scope="module")
def photograph(tools):
    return masked_observation(tools, tools.photographs(32)[:1])


def test_the_mask_shows_in_the_gradient(photograph):
    observation, _, mask = photograph
    assert mask.any()
    assert torch.equal(masked_positions(observation.gradient_of("pos_embed")[0, 1:]), mask)


@pytest.mark.parametrize("class_token", ["own", "unknown"])
def test_a_full_mask_is_refused(class_token, tools, rng, cpu):
    """No row tells a patch from another; the class token's own is another matter."""
    mjp = MaskedJigsawPuzzle(ratio=1.0, min_block=64, class_token=class_token)
    spec = tools.tiny(kwargs={"depth": 2})
    mjp.wrap_model(spec.build(0))
    seen = mjp.transform_batch(Batch(tools.detailed(), torch.tensor([3])), torch.Generator().manual_seed(2)).images
    observation = tools.observe(spec, seen, [3], defenses={"mjp": mjp})
    shared = observation.gradient_of("pos_embed")[0]
    assert not shared[1:].any()
    assert bool(shared[0].any()) == (class_token == "own")
    assert masked_positions(shared[1:]).all()
    with pytest.raises(NotApplicable, match="all 64 patches are masked"):
        MJPAdaptive()(observation, rng, cpu)


def test_an_embedding_that_was_not_trained_is_no_full_mask(photograph, rng, cpu):
    observation, _, _ = photograph
    still = {name: torch.zeros_like(observation.update.tensors[name]) for name in ("pos_embed", "unknown_embed")}
    update = replace(observation.update, tensors={**observation.update.tensors, **still})
    with pytest.raises(NotApplicable, match="it was not trained"):
        MJPAdaptive()(replace(observation, update=update), rng, cpu)


def test_unmasked_patches_are_exact_but_for_the_span_of_the_masked():
    rng = torch.Generator().manual_seed(0)
    G = torch.randn(20, 50, generator=rng, dtype=torch.float64)
    X = torch.randn(20, 30, generator=rng, dtype=torch.float64)
    masked = torch.arange(20) < 4
    known = torch.where(masked[:, None], 0.0, G)
    parts = take_apart(known, G.T @ X, masked)
    assert parts.span.gap > 1e10
    rest = X - parts.base
    assert (rest - rest @ parts.span.basis.T @ parts.span.basis).abs().max() < 1e-10


def test_beats_the_naive_attack_and_is_not_certified(photograph, tools, rng, cpu):
    observation, seen, _ = photograph
    naive, adaptive = PatchGradient()(observation, rng, cpu), MJPAdaptive()(observation, rng, cpu)
    assert tools.psnr(adaptive.images, seen) > tools.psnr(naive.images, seen) + 3
    assert not naive.certificate.certified
    assert not adaptive.certificate.certified
    assert adaptive.certificate.values["identity"] < 1e-10
    guess = MJPAdaptive()(tools.random_gradient(observation), rng, cpu)
    assert tools.psnr(guess.images, seen) < tools.psnr(adaptive.images, seen)


def test_an_unmasked_picture_is_exact(tools, rng, cpu):
    observation, seen, mask = masked_observation(tools, tools.detailed(), ratio=0.0)
    assert not mask.any()
    result = MJPAdaptive()(observation, rng, cpu)
    assert tools.psnr(result.images, seen) > 150
    assert result.certificate.certified


def test_replay_is_bit_equal(photograph, rng, cpu):
    first, second = (MJPAdaptive()(photograph[0], rng, cpu) for _ in range(2))
    assert torch.equal(first.images, second.images)


def test_refuses_what_runs_without_mjp(tools, rng, cpu):
    with pytest.raises(NotApplicable, match="unknown_embed"):
        MJPAdaptive()(tools.observe(tools.tiny(kwargs={"depth": 1}), tools.detailed(), [3]), rng, cpu)


def test_refuses_settings():
    with pytest.raises(ConfigError, match="later"):
        MJPAdaptive(later=-1)


@pytest.mark.parametrize(("images", "refused"), [(1, False), (2, True)])
def test_two_local_steps_of_one_image_each_are_two_images(images, refused):
    """Its equations are those of one gradient of one image, whatever the size of a step's batch."""
    torch.manual_seed(0)
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    trained = {"share": "delta", "batch_size": 1, "local_steps": 2, "lr": 1e-4}
    seen = fedsim.observe(vit, torch.rand(images, 3, 8, 8), list(range(images)), defense=["mjp"], **trained)
    assert (seen.protocol.batch_size, seen.protocol.steps, seen.num_images) == (1, 2, images)
    result = fedsim.attack("mjp_adaptive", seen)
    if refused:
        assert (result.status, result.reason) == ("refused", "2 images behind the update: at most 1 can be served")
    else:
        assert result.status == "done"


def test_several_local_steps_have_masks_of_their_own_and_leave_no_patch_exact(photograph, rng, cpu):
    observation, _, mask = photograph
    steps = replace(observation, protocol=replace(observation.protocol, steps=3))
    assert "each patch is exact but for" in MJPAdaptive().run(observation, rng, cpu).certificate.reason
    told = MJPAdaptive().run(steps, rng, cpu).certificate.reason
    assert (
        told == f"{int(mask.sum())} patches are masked in each of 3 local steps, whose masks differ: no patch is exact"
    )
