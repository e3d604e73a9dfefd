"""Behind noise a result is drawn towards the public mean, by what explains the update and by nothing else."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import fedsim
from attacks import toward_mean
from attacks.base import Certificate, Reconstruction
from attacks.toward_mean import drawn_to_mean
from defenses import CutMix, GradientNoise, Half, MixUp, TopK
from defenses.base import DefenseChain
from experiments.engine.guess import seen_through
from fedsim.bounds.public_prior import PublicPrior
from fedsim.effects import Clips
from fedsim.models import Architecture, ModelSpec


def digits(first, last):
    images = torch.from_numpy(load_digits().images[first:last] / 16).float()[:, None]
    return images.expand(-1, 3, -1, -1).contiguous()


def seen(defense, count=1, seed=0, first=0):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    observed = fedsim.observe(vit, digits(first, first + count), torch.arange(count), defense=defense, seed=seed)
    return replace(observed, image_prior=PublicPrior.of(digits(1000, 1300)))


def result(images, status="uncertified"):
    return Reconstruction(images=images, labels=None, certificate=Certificate(status, "a test", {}))


def error(images, count=1):
    return float((images.double() - digits(0, count).double()).square().mean())


@pytest.mark.parametrize("defense", [GradientNoise(relative_norm=1e-2), TopK(0.1, error_feedback=False)])
def test_what_is_wrong_becomes_the_mean_and_what_is_right_stays(defense, rng):
    observation = seen([defense])
    mean = observation.image_prior.mean[None]
    wrong = drawn_to_mean(observation, result(torch.rand(1, 3, 8, 8, generator=rng)))
    assert error(wrong.images) < 1.1 * error(mean)
    right = drawn_to_mean(observation, result(digits(0, 1)))
    assert error(right.images) < 0.1 * error(mean)


def test_a_wrong_mixture_of_a_batch_becomes_the_mean(rng):
    observation = seen([], count=2)
    drawn = drawn_to_mean(observation, result(torch.rand(1, 3, 8, 8, generator=rng)))
    assert torch.allclose(drawn.images.double(), observation.image_prior.mean[None], atol=1e-6)


def test_a_pair_that_came_out_stays_though_it_is_not_certified():
    found = fedsim.attack("first_block", seen([], count=2, first=2), starts=40)
    errors = (found.images[:, None].double() - digits(2, 4)[None].double()).square().mean(dim=(2, 3, 4))
    assert not found.certified
    assert errors.min() < 1e-4
    assert errors.min(dim=1).values.max() < 1e-3


@pytest.mark.parametrize("defense", [[], ["mjp"], ["mjp_jp"], ["fixed_pe"]])
def test_what_explains_none_of_an_update_becomes_the_mean(defense, rng):
    observation = seen(defense)
    drawn = drawn_to_mean(observation, result(torch.rand(1, 3, 8, 8, generator=rng)))
    assert torch.allclose(drawn.images.double(), observation.image_prior.mean[None], atol=1e-6)
    right = result(digits(0, 1))
    if defense in ([], ["fixed_pe"]):
        assert drawn_to_mean(observation, right) is right


@pytest.mark.parametrize("defense", [[Half()], ["sign"], ["precode"]])
def test_where_errors_cannot_be_weighed_it_stays(defense, rng):
    given = result(torch.rand(1, 3, 8, 8, generator=rng))
    assert drawn_to_mean(seen(defense), given) is given


def test_what_is_certified_or_fits_or_is_not_finite_stays():
    observation = seen([GradientNoise(relative_norm=1e-2)])
    zeros, nan = torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), torch.nan)
    for given in (result(zeros, "certified"), result(nan), replace(result(zeros), solves_equations=True)):
        assert drawn_to_mean(observation, given) is given


def test_no_closed_form_ends_below_the_public_mean_behind_noise():
    errors = {"mean": 0.0, "patch_gradient": 0.0, "row_space": 0.0}
    for seed in range(2):
        observation = seen([GradientNoise(relative_norm=1e-2)], seed=seed)
        errors["mean"] += error(observation.image_prior.mean[None])
        errors["patch_gradient"] += error(fedsim.attack("patch_gradient", observation).images)
        errors["row_space"] += error(fedsim.attack("row_space", observation, later=0).images)
    assert max(errors.values()) < 1.05 * errors["mean"]


@pytest.mark.parametrize("defense", [CutMix, MixUp])
def test_one_image_for_a_mixed_batch_ends_at_the_public_mean_or_above(defense):
    """Against the nearest of the two, as scores are; what it stands for among them, nothing tells."""
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    public = digits(1000, 1512)
    chain = DefenseChain({"mixing": defense()})
    chain.wrap_model(vit)
    through = seen_through(chain, vit, 2, torch.Generator().manual_seed(1))
    prior = PublicPrior.of(public, through(public))
    errors = []
    for index in range(12):
        pair = digits(2 * index, 2 * index + 2)
        observed = fedsim.observe(vit, pair, [0, 1], defense=[defense()], seed=index)
        found = fedsim.attack("patch_gradient", replace(observed, image_prior=prior))
        apart = [(guess - pair).square().mean(dim=(1, 2, 3)).min() for guess in (found.own_images, prior.mean)]
        errors.append([float(error) for error in apart])
    own, guess = torch.tensor(errors).mean(dim=0)
    assert own < 1.05 * guess


def test_behind_dropout_no_image_explains_the_update_and_the_exact_one_stays():
    spec = ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"pos_drop_rate": 0.1, "drop_path_rate": 0.1})
    observed = fedsim.observe(Architecture(spec, (), 0).build(keep=True), digits(0, 1), [0], training_mode=True)
    found = fedsim.attack("patch_gradient", replace(observed, image_prior=PublicPrior.of(digits(1000, 1300))))
    assert error(found.images) < 1e-10


def scaled(observation, factor):
    update = observation.update
    return replace(observation, update=replace(update, tensors={n: factor * t for n, t in update.tensors.items()}))


LOSSES = {
    "three times as large": lambda z: 3.0 * F.cross_entropy(z, torch.tensor([0])),
    "a loss scale left in": lambda z: 65536.0 * F.cross_entropy(z, torch.tensor([0])),
    "another loss": lambda z: F.binary_cross_entropy_with_logits(z, torch.eye(10)[:1], reduction="sum"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("attack", ["patch_gradient", "row_space"])
def test_an_own_gradient_of_any_size_and_loss_keeps_its_exact_image(attack, loss):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True).eval()
    mean, std = [0.5] * 3, [0.5] * 3
    found = torch.autograd.grad(LOSSES[loss](vit((digits(0, 1) - 0.5) / 0.5)), list(vit.parameters()))
    own = fedsim.Observation.of(vit, found, image_shape=(3, 8, 8), num_classes=10, mean=mean, std=std)
    result = fedsim.attack(attack, own)
    assert error(result.images) < 1e-10
    factor = {"three times as large": "3", "a loss scale left in": "65536"}.get(loss)
    said = f"the shared update is about {factor} times what the protocol as stated gives"
    assert result.reason == (said if factor else "")
    assert said not in str(result) if factor is None else said in str(result)


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_the_size_of_an_update_does_not_count_where_its_direction_fits(factor, rng):
    observation = scaled(seen([]), factor)
    near = (digits(0, 1) + 0.01 * torch.randn(1, 3, 8, 8, generator=rng)).clamp(0, 1)
    kept = drawn_to_mean(observation, result(near))
    assert torch.equal(kept.images, near)
    assert kept.note == f"the shared update is about {factor:.3g} times what the protocol as stated gives"
    wrong = drawn_to_mean(observation, result(torch.rand(1, 3, 8, 8, generator=rng)))
    assert error(wrong.images) < 1.1 * error(observation.image_prior.mean[None])
    assert not wrong.note


@pytest.mark.parametrize(("right", "most"), [(True, 2), (False, 3)])
def test_what_is_clearly_right_or_wrong_costs_few_steps_of_the_client(right, most, rng, monkeypatch):
    """One at the mean, one at the image; beside the mean one more."""
    made, calls = toward_mean._residual, []

    def counted(*given):
        residual = made(*given)
        return replace(residual, shared=lambda x: (calls.append(x), residual.shared(x))[1])

    monkeypatch.setattr(toward_mean, "_residual", counted)
    image = digits(0, 1) if right else torch.rand(1, 3, 8, 8, generator=rng)
    drawn_to_mean(seen([GradientNoise(relative_norm=1e-4)] if right else []), result(image))
    assert 0 < len(calls) <= most


@pytest.mark.parametrize("steps", [1, 3])
def test_an_image_whose_own_equations_hold_is_not_weighed(steps, monkeypatch):
    monkeypatch.setattr(toward_mean, "_residual", None)
    observation = seen([])
    observation = replace(observation, protocol=replace(observation.protocol, steps=steps, batch_size=1))
    given = replace(result(digits(0, 1)), solves_equations=True)
    assert drawn_to_mean(observation, given) is given


def test_what_a_public_clip_took_off_is_no_other_scale():
    found = fedsim.attack("patch_gradient", seen([{"gradient_clip": {"max_norm": 0.01}}]), certify=False)
    assert (found.reason, error(found.images) < 1e-10) == ("", True)


@pytest.mark.parametrize("per", ["update", "step", "example"])
def test_the_clips_of_several_clients_do_not_show_in_their_sum(per):
    plain = seen([])
    clipped = replace(plain, defenses=({"name": "mine"},), recorded_effects=(Clips(0.05, per),))
    clipped = replace(clipped, architecture=replace(clipped.architecture, wrappers=()))
    assert toward_mean._can_be_weighed(clipped)
    assert not toward_mean._can_be_weighed(replace(clipped, summed=2))


@pytest.mark.parametrize("recipe", ["lora", {"lora": {"aggregate": "local_pair"}}])
def test_beside_a_pair_of_the_clients_own_only_the_first_round_is_weighed(recipe):
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    steps = {"share": "delta", "local_steps": 1, "finetune": recipe}
    first, second = (fedsim.observe(vit, digits(0, 1), [0], server_round=number, **steps) for number in (1, 2))
    assert toward_mean._can_be_weighed(first)
    assert toward_mean._can_be_weighed(second) == (recipe == "lora")


def test_a_batchs_images_are_weighed_in_the_order_of_their_labels():
    seen_of_two = seen([GradientNoise(relative_norm=1e-3)], count=2)
    right = digits(0, 2).double()
    straight, turned = (drawn_to_mean(seen_of_two, result(images)).images for images in (right, right.flip(0)))
    assert torch.allclose(straight, right, atol=0.05)
    assert torch.allclose(turned.flip(0), right, atol=0.05)
