"""What is expected of each shared number, against what the defenses themselves do to it."""

from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.noise import noise_of
from attacks.optimization.second_order.errors import rounding_of
from defenses import DPSGD, QSGD, GradientNoise, Half


def seen(model, defense=(), **protocol):
    images = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return fedsim.observe(model, images, torch.tensor([2]), defense=list(defense), **protocol)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 20), torch.nn.Sigmoid(), torch.nn.Linear(20, 5))


@pytest.mark.parametrize(
    "defense",
    [
        GradientNoise(std=0.01),
        GradientNoise(std=0.01, distribution="laplace"),
        GradientNoise(relative_norm=0.1),
        Half("bfloat16"),
        DPSGD(noise_multiplier=0.01, max_grad_norm=1e3),
    ],
)
def test_noise_is_as_large_as_it_is(model, defense):
    clean, noisy = seen(model).gradient, seen(model, [defense])
    expected = noise_of(noisy, noisy.gradient, 1.0)
    z = torch.cat([((noisy.gradient[n] - clean[n]) / expected[n].clamp(min=1e-30)).flatten() for n in clean])
    assert float(z.square().mean().sqrt()) == pytest.approx(1.0, abs=0.35)


def test_quantisation_errs_by_no_more_than_its_steps(model):
    clean, coarse = seen(model).gradient, seen(model, [QSGD(levels=64)])
    expected = noise_of(coarse, coarse.gradient, 1.0)
    for name, tensor in clean.items():
        assert float((coarse.gradient[name] - tensor).abs().max()) <= 12**0.5 * float(expected[name].max()) * 1.01


def test_without_such_a_defense_there_is_none(model):
    assert noise_of(seen(model), seen(model).gradient, 1.0) is None


def test_a_changes_rounding_is_that_of_its_weights(model):
    plain = seen(model)
    state = {name: tensor.double() for name, tensor in plain.global_state.items()}
    rounded = {name: (state[name] - 1e-3 * g).float() for name, g in plain.gradient.items()}
    update = replace(plain.update, kind="weights", tensors=rounded)
    weights = replace(plain, update=update, protocol=replace(plain.protocol, lrs=(1e-3,)))
    expected = rounding_of(weights, plain.gradient, 1e-3, "gradient")
    off = {name: (state[name] - rounded[name].double()) / 1e-3 - plain.gradient[name] for name in rounded}
    z = torch.cat([(off[name] / expected[name]).flatten() for name in off])
    assert 0.1 < float(z.square().mean().sqrt()) < 2.0
