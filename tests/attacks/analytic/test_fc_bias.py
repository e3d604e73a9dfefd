"""The bias attack on networks that read the picture, and its refusals on those that do not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.analytic.fc_bias import FullyConnectedBias, bias_gradients, image_layer
from attacks.building import build_attack
from fedsim.errors import ConfigError, NotApplicable
from fedsim.models import ModelSpec
from tests.attacks.test_attack_conf import loaded


def mlp(**kwargs):
    return ModelSpec("mlp_32", 10, img_size=16, kwargs={"hidden": [128, 32], **kwargs})


def run(observation, cpu, **settings):
    return FullyConnectedBias(**settings)(observation, torch.Generator().manual_seed(0), cpu)


def eight_bit(pictures):
    return (pictures * 255).round() / 255


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "leaky_relu"])
@pytest.mark.parametrize("lr", [None, 0.1])
def test_one_picture_is_exact(activation, lr, tools, cpu):
    picture = tools.photographs(16)[:1]
    observation = tools.observe(mlp(activation=activation), picture, [3], lr=lr)
    found = run(observation, cpu, levels=None)
    assert tools.psnr(found.images, picture) > (110 if lr is None else 65)
    assert found.labels.tolist() == [3]
    assert found.certificate.certified


def test_whole_levels_are_reached_and_only_where_they_are_the_truth(tools, cpu):
    on_grid = eight_bit(tools.photographs(16)[:1])
    assert tools.psnr(run(tools.observe(mlp(), on_grid, [3], lr=0.01), cpu).images, on_grid) > 250
    between = on_grid * 0.997 + 0.001
    found = run(tools.observe(mlp(), between, [3], lr=0.01), cpu)
    assert tools.psnr(found.images, between) > 60, "a picture between the levels stays there"


def test_several_local_steps_on_one_picture_are_exact(tools, cpu):
    picture = tools.photographs(16)[:1]
    observation = tools.observe(mlp(), picture, [3], lr=0.05, steps=4)
    observation = replace(observation, update=replace(observation.update, num_examples=1))
    assert tools.psnr(run(observation, cpu, levels=None).images, picture) > 65


def test_a_batch_gives_the_pictures_that_have_units_of_their_own(tools, cpu):
    pictures = eight_bit(tools.detailed(3, 16))
    observation = tools.observe(mlp(hidden=[512, 32]), pictures, [1, 4, 7])
    found = run(observation, cpu)
    assert 1 <= len(found.images) <= 3
    assert found.certificate.certified, found.certificate.reason
    for image in found.images:
        assert max(tools.psnr(image, picture) for picture in pictures) > 250


ALIKE = {
    "one hidden layer": (8, {"hidden": [256]}, 0.16),
    "two": (16, {"hidden": [128, 32]}, 0.1),
    "the shipped mlp": (32, {}, 0.04),
}


@pytest.mark.parametrize("case", ALIKE)
def test_nearly_alike_pictures_of_one_label_are_certified_only_where_they_are_true(case, tools, cpu):
    """Their errors are all but parallel, so that units that both activate agree on a mixture."""
    side, kwargs, share = ALIKE[case]
    pictures = tools.photographs(side)
    pair = eight_bit(torch.stack([pictures[0], torch.lerp(pictures[0], pictures[1], share)]))
    for seed in range(6):
        spec = ModelSpec("mlp_32", 10, img_size=side, kwargs=kwargs)
        found = run(tools.observe(spec, pair, [3, 3], seed=seed), cpu)
        true = [max(tools.psnr(image, picture) for picture in pair) > 250 for image in found.images]
        assert all(true) or not found.certificate.certified
        assert found.certificate.certified or "mixtures of alike pictures" in found.certificate.reason


@pytest.mark.parametrize("apart", ["brighter", "here and there"])
def test_a_mixture_on_whole_levels_is_not_certified(apart, tools, rng, cpu):
    """An even number of levels between them: the mean of both pictures passes as whole levels, of neither."""
    levels = (tools.photographs(16)[:1] * 255).round().clamp(4, 251)
    steps = torch.ones_like(levels) if apart == "brighter" else torch.randint(-1, 2, levels.shape, generator=rng)
    pair = torch.cat([levels, levels + 4 * steps]) / 255
    for seed in range(4):
        found = run(tools.observe(mlp(hidden=[512, 32]), pair, [3, 3], seed=seed), cpu)
        true = [max(tools.psnr(image, picture) for picture in pair) > 250 for image in found.images]
        assert all(true) or not found.certificate.certified


def test_pictures_of_one_label_that_have_units_of_their_own_are_certified(tools, cpu):
    pair = eight_bit(tools.photographs(16))
    observation = tools.observe(mlp(hidden=[512, 32]), pair, [3, 3], label_smoothing=0.1)
    found = run(observation, cpu)
    assert found.certificate.certified, found.certificate.reason
    assert "whole pixel levels" in found.certificate.reason
    assert not run(observation, cpu, levels=None).certificate.certified


def test_what_the_layer_shares_of_one_picture_is_what_autograd_says(tools, cpu):
    picture = eight_bit(tools.photographs(16)[:1])
    observation = tools.observe(replace(mlp(), dtype="float64"), picture, [3], label_smoothing=0.1)
    found = bias_gradients(observation, "body.1", picture[0])
    torch.testing.assert_close(found[3], observation.gradient["body.1.bias"])
    assert found.shape == (10, 128)


@pytest.mark.parametrize("inplace", [False, True])
def test_activations_in_place_cost_a_batch_no_certificate(inplace, tools):
    layers = [nn.Linear(768, 512), nn.ReLU(inplace), nn.Linear(512, 32), nn.ReLU(inplace), nn.Linear(32, 10)]
    torch.manual_seed(0)
    for layer in layers[::2]:
        layer.reset_parameters()
    pictures = eight_bit(tools.detailed(2, 16))
    seen = fedsim.observe(nn.Sequential(nn.Flatten(), *layers), pictures, [1, 4])
    assert fedsim.attack("fc_bias", seen).certified


def test_sigmoids_mix_a_batch_and_the_certificate_says_so(tools, cpu):
    observation = tools.observe(mlp(activation="sigmoid"), tools.detailed(3, 16), [1, 4, 7])
    found = run(observation, cpu)
    assert len(found.images) == 1
    assert not found.certificate.certified
    assert "mixed in every unit" in found.certificate.reason


def test_a_random_gradient_gives_nothing(tools, cpu):
    picture = tools.photographs(16)[:1]
    found = run(tools.random_gradient(tools.observe(mlp(), picture, [3])), cpu)
    assert tools.psnr(found.images, picture) < 15
    assert not found.certificate.certified
    assert "residual" in found.certificate.reason


def test_noise_lowers_the_promise(tools, cpu):
    picture = tools.photographs(16)[:1]
    observation = tools.observe(mlp(), picture, [3])
    rng = torch.Generator().manual_seed(1)
    noisy = {
        n: t + 1e-2 * t.norm() / t.numel() ** 0.5 * torch.randn(t.shape, generator=rng)
        for n, t in observation.update.tensors.items()
    }
    found = run(replace(observation, update=replace(observation.update, tensors=noisy)), cpu)
    expected = found.certificate.values["expected_psnr"]
    assert abs(tools.psnr(found.images, picture) - expected) < 3
    assert not found.certificate.certified


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ModelSpec("lenet_dlg_32", 10, img_size=16), "fc, reads 192 features, not the 768 pixels"),
        (ModelSpec("vit_nano_patch2_8", 10), "tokens, not the picture"),
        (mlp(bias=False), "has no bias"),
    ],
)
def test_refusals(spec, words, tools, cpu):
    side = spec.img_size or 8
    with pytest.raises(NotApplicable, match=words):
        run(tools.observe(spec, tools.detailed(1, side), [0]), cpu)


def test_withheld_and_zero_gradients_are_refused(tools, cpu):
    observation = tools.observe(mlp(), tools.detailed(1, 16), [0])
    tensors = dict(observation.update.tensors)
    del tensors["body.1.bias"]
    with pytest.raises(NotApplicable, match=r"body\.1\.bias's gradient is withheld by the client"):
        run(replace(observation, update=replace(observation.update, tensors=tensors)), cpu)
    tensors["body.1.bias"] = torch.zeros(128)
    with pytest.raises(NotApplicable, match="is zero"):
        run(replace(observation, update=replace(observation.update, tensors=tensors)), cpu)


def test_the_first_layer_is_the_one_that_runs_first(tools):
    observation = tools.observe(mlp(), tools.detailed(1, 16), [0])
    assert image_layer(observation) == "body.1"


@pytest.mark.parametrize(("setting", "value"), [("tolerance", 0.0), ("levels", 0)])
def test_bad_settings(setting, value):
    with pytest.raises(ConfigError, match=rf"attack\.fc_bias\.{setting}"):
        FullyConnectedBias(**{setting: value})


def test_the_file_builds_it():
    assert isinstance(build_attack("fc_bias", loaded("fc_bias")), FullyConnectedBias)


@pytest.mark.shared_data
def test_real_pictures(tools, cpu, cifar10_sample):
    pictures = tools.pictures_in(cifar10_sample / "train", 5, 32)
    for number, picture in enumerate(pictures):
        observation = tools.observe(ModelSpec("mlp_32", 10), picture[None], [number])
        assert tools.psnr(run(observation, cpu).images[0], picture) > 150


def test_a_batch_of_two_classes_is_never_certified(tools, rng, cpu):
    """Its errors have rank one, so that units of one activation pattern are parallel whatever they mix."""
    spec = ModelSpec("mlp_32", num_classes=2, kwargs={"hidden": [256]})
    observation = tools.observe(spec, tools.detailed(4), [0, 1, 1, 0])
    found = FullyConnectedBias()(observation, rng, cpu)
    assert not found.certificate.certified
    assert "two classes" in found.certificate.reason
