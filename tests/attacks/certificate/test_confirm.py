"""A certificate needs the client's computation once more, and the conditioning bounded: what each refuses."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.analytic import PatchGradient
from attacks.analytic.fc_bias import FullyConnectedBias
from attacks.base import Attack, Certificate, PsnrBound, Reconstruction
from attacks.building import build_attack
from attacks.certificate.confirm import MAX_PSNR, mismatch
from fedsim.errors import ConfigError
from fedsim.metrics.score import score
from tests.support.clients import observe_client

CPU = torch.device("cpu")
VIT = ("data=digits", "model=vit_nano")
MLP = ("data=digits", "model=mlp", "model.img_size=8", "model.kwargs.hidden=[128,64]")


def run(attack, observation):
    return attack(observation, torch.Generator().manual_seed(0), CPU)


def seen_psnr(result, truth):
    (one,) = score(truth, result.images, result.labels)
    return math.inf if one.psnr is None or one.mse == 0 else one.psnr


class Answer(Attack):
    """Gives what it is told, and calls it certified."""

    def __init__(self, images, labels=None, psnr=90.0):
        self.images, self.labels, self.psnr = images, labels, psnr

    def run(self, observation, rng, device):
        return Reconstruction(self.images, self.labels, Certificate("certified", "says so"))

    def bound(self, observation, result, again):
        return None if self.psnr is None else PsnrBound(self.psnr, "its word")


class Named(Attack):
    """Gives labels alone, and calls them certified."""

    recovers = "labels"

    def __init__(self, labels):
        self.labels = labels

    def run(self, observation, rng, device):
        return Reconstruction(labels=self.labels, certificate=Certificate("certified", "says so"))


def test_labels_of_a_rule_of_ones_own_are_certified_where_the_head_allows_no_others(plain):
    observation, truth = plain
    assert run(Named(truth.labels), observation).certificate.certified
    wrong = run(Named((truth.labels + 1) % 10), observation).certificate
    assert (wrong.status, wrong.reason) == ("uncertified", "the head's equations allow other labels alone")
    assert run(Named(None), observation).certificate.status == "uncertified"
    hidden, truth = observe_client(*VIT, "defense=[withhold]", "defense.withhold.patterns=['head.*']")
    assert run(Named(truth.labels), hidden).certificate.status == "uncertified"


@pytest.fixture(scope="module")
def plain():
    return observe_client(*VIT)


def test_the_truth_is_certified_and_anything_else_is_not(plain):
    observation, truth = plain
    right = run(Answer(truth.images), observation)
    assert right.certificate.certified, right.certificate
    assert right.certificate.values["promised_psnr"] == 90.0
    wrong = run(Answer(truth.images.flip(-1)), observation)
    assert wrong.certificate.status == "uncertified"
    assert "its update is off by" in wrong.certificate.reason
    mislabelled = run(Answer(truth.images, (truth.labels + 1) % 10), observation)
    assert mislabelled.certificate.status == "uncertified"


def test_unknown_conditioning_and_a_weak_bound_certify_nothing(plain):
    observation, truth = plain
    unknown = run(Answer(truth.images, psnr=None), observation)
    assert "conditioning is unknown" in unknown.certificate.reason
    weak = run(Answer(truth.images, psnr=55.0), observation)
    assert weak.certificate.status == "uncertified"
    assert "55 dB at least by its word" in weak.certificate.reason
    assert run(Answer(truth.images, psnr=500.0), observation).certificate.values["promised_psnr"] == MAX_PSNR


def test_what_cannot_be_repeated_is_not_certified(plain):
    observation, truth = plain
    for other in (replace(observation, replayer=None), replace(observation, summed=2)):
        assert run(Answer(truth.images), other).certificate.status == "uncertified"
    noisy, truth = observe_client(*VIT, "defense=gradient_noise", "defense.gradient_noise.relative_norm=1e-6")
    assert run(Answer(truth.images), noisy).certificate.status == "uncertified"


def test_it_can_be_left_out_by_name(plain):
    observation, _ = plain
    settings = {"_target_": "attacks.analytic.PatchGradient"}
    assert run(build_attack("one", settings), observation).certificate.certified
    left_out = run(build_attack("one", {**settings, "certify": False}), observation)
    assert left_out.certificate.reason == "left out: certify=false"
    with pytest.raises(ConfigError, match=r"attack\.one\.certify"):
        build_attack("one", {**settings, "certify": "no"})


def test_the_default_bound_is_the_jacobian(plain):
    observation, truth = plain
    attack = Answer(truth.images)
    found = Attack.bound(attack, observation, Reconstruction(truth.images, truth.labels), observation)
    assert found is not None
    assert "whole Jacobian" in found.how


def test_mismatch_is_of_the_worst_tensor(plain):
    observation, _ = plain
    name = "blocks.0.mlp.fc1.weight"
    tensors = {**observation.update.tensors, name: 1.5 * observation.update.tensors[name]}
    assert mismatch(observation, replace(observation, update=replace(observation.update, tensors=tensors))) == (
        pytest.approx(0.5)
    )


@pytest.mark.parametrize("flip", [0, 1, 2, 3])
def test_transformations_drawn_anew_in_each_step_are_not_certified(flip):
    observation, _ = observe_client(
        *MLP, "model.kwargs.activation=sigmoid", "client.share=delta", "client.local_steps=2", "client.batch_size=1",
        "defense=ats", "defense.ats.policies=[[4,19,14]]", positions=(flip,),
    )  # fmt: skip
    assert run(FullyConnectedBias(), observation).certificate.status == "uncertified"


@pytest.mark.parametrize("model", [(*MLP, "model.kwargs.activation=sigmoid"), VIT])
@pytest.mark.parametrize("norm", [1e-3, 1e-1])
def test_tensors_clipped_by_different_factors_are_not_certified(model, norm):
    observation, _ = observe_client(
        *model, "defense=dp_sgd", "defense.dp_sgd.noise_multiplier=0.0", f"defense.dp_sgd.max_grad_norm={norm}",
        "defense.dp_sgd.per_layer=true",
    )  # fmt: skip
    attack = FullyConnectedBias() if model is not VIT else PatchGradient()
    result = run(attack, observation)
    assert result.images is not None
    assert result.certificate.status == "uncertified"


def test_one_factor_for_all_tensors_is_certified():
    observation, truth = observe_client(*VIT, "defense=gradient_clip", "defense.gradient_clip.max_norm=0.01")
    result = run(PatchGradient(), observation)
    assert result.certificate.certified
    assert seen_psnr(result, truth) >= result.certificate.values["promised_psnr"]


@pytest.mark.parametrize("ratio", [0.98, 0.999])
@pytest.mark.parametrize("position", range(4))
def test_nothing_is_promised_behind_top_k(ratio, position):
    observation, _ = observe_client(
        *VIT, "defense=topk", f"defense.topk.ratio={ratio}", "defense.topk.error_feedback=false", positions=(position,)
    )
    result = run(PatchGradient(), observation)
    assert result.certificate.status == "uncertified"
    assert "promised_psnr" not in result.certificate.values


def test_images_that_differ_from_step_to_step_are_not_certified_however_small_the_steps():
    """Steps so small that the rounding of the weights hides which image each of them saw."""
    observation, _ = observe_client(
        *MLP, "model.kwargs.activation=sigmoid", "client.share=delta", "client.local_steps=2", "client.batch_size=1",
        "client.optimizer.lr=1e-4", "defense=ats", "defense.ats.policies=[[4,19,14]]",
    )  # fmt: skip
    result = run(FullyConnectedBias(), observation)
    assert result.certificate.status == "uncertified"
    assert not observation.repeatable


def test_an_update_that_rounding_hides_is_not_what_was_shared(plain):
    observation, truth = observe_client(*VIT, "client.share=delta", "client.optimizer.lr=1e-6")
    result = run(Answer(truth.images.roll(1, -1)), observation)
    assert result.certificate.status == "uncertified"


@pytest.mark.parametrize("parts", [{"1.weight": 1.0009, "1.bias": 0.9996}, {"1.bias": 0.9992}, {"1.weight": 1.0008}])
def test_what_is_left_of_the_update_lowers_the_promise(parts):
    """Tensors scaled apart, by less than what a computation once more may miss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    image = torch.rand(1, 3, 8, 8)
    own = fedsim.observe(model, image, [3]).update.tensors
    scaled = {name: parts.get(name, 1.0) * tensor for name, tensor in own.items()}
    seen = fedsim.Observation.of(model, scaled, image_shape=(3, 8, 8), replayer=fedsim.replay)
    result = fedsim.score(fedsim.attack("fc_bias", seen, levels=None), image, torch.tensor([3]))
    assert result.psnr[0] < 80
    assert not result.certified or result.psnr[0] >= result.certificate.values["promised_psnr"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_is_nan_alone(plain, value):
    observation, _ = plain
    name = "blocks.0.mlp.fc1.weight"

    def spoilt(value):
        tensor = observation.update.tensors[name].clone()
        tensor[0, :2] = torch.tensor([value, 0.0])
        return replace(
            observation, update=replace(observation.update, tensors={**observation.update.tensors, name: tensor})
        )

    assert mismatch(spoilt(value), spoilt(value)) == 0.0, "half precision overflows again"
    for other in (0.0, -math.inf, 1e38, math.nan if value == math.inf else math.inf):
        assert mismatch(spoilt(value), spoilt(other)) == math.inf
