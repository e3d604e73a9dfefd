"""What is expected of each shared number, against what the defenses themselves do to it."""

import math
from dataclasses import replace

import pytest
import timm
import torch
from torch import nn

import fedsim
from attacks.noise import noise_of
from attacks.optimization import Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual.errors import rounding_of
from attacks.optimization.second_order.residual.residual import make_residuals
from attacks.positions import of_images
from defenses import DPSGD, QSGD, GradientNoise, Half
from fedsim.bounds.gaussian_prior import GaussianPrior
from tests.support.attention import Attention


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


def test_relative_noise_goes_by_all_that_was_shared(model):
    noisy = seen(model, [GradientNoise(relative_norm=0.1)])
    whole = noise_of(noisy, noisy.gradient, 1.0)
    part = {name: tensor for name, tensor in noisy.gradient.items() if not name.startswith("3.")}
    assert all(torch.equal(std, whole[name]) for name, std in noise_of(noisy, part, 1.0).items())


def test_a_change_in_half_precision_is_one_of_weights_in_single(model):
    plain = seen(model)
    update = replace(plain.update, kind="delta", tensors={n: -1e-3 * g.half() for n, g in plain.gradient.items()})
    moved = replace(plain, update=update, protocol=replace(plain.protocol, lrs=(1e-3,)))
    found = rounding_of(moved, plain.gradient, 1e-3, "gradient")
    for name, std in found.items():
        weight = torch.finfo(torch.float32).eps * plain.global_state[name].abs() / 1e-3
        assert bool((std < 2e-3 * plain.gradient[name].norm() + 2.0 * weight).all())


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


class Tokens(nn.Module):
    """Nine patches of 2 by 2 pixels, with places."""

    def __init__(self, width=16):
        super().__init__()
        self.embed, self.places = nn.Linear(12, width), nn.Parameter(torch.randn(9, width) * 0.5)
        self.attention, self.head = Attention(width), nn.Linear(width, 5)

    def forward(self, images):
        tokens = self.embed(nn.functional.unfold(images, 2, stride=2).mT) + self.places
        return self.head(self.attention(tokens).mean(1))


class Branch(nn.Module):
    """x + γ·tanh(Wx + b), γ and b zero at first: neither W nor b moves."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(48, 48), nn.Parameter(torch.zeros(48))
        nn.init.zeros_(self.inner.bias)

    def forward(self, x):
        return x + self.scale * torch.tanh(self.inner(x))


def test_a_tensor_that_is_rounding_alone_is_off_by_itself():
    """Against the same gradient in float64."""
    torch.manual_seed(1)
    tokens, images = Tokens(), torch.rand(1, 3, 6, 6)
    shared = fedsim.observe(tokens, images, [3])
    exact_model, gradient = Tokens().double(), {}
    exact_model.load_state_dict(tokens.state_dict())
    x = shared.normalised(images).double()
    nn.functional.cross_entropy(exact_model(x), torch.tensor([3])).backward()
    gradient = {name: parameter.grad for name, parameter in exact_model.named_parameters()}
    target = {name: tensor.double() for name, tensor in shared.gradient.items()}
    expected = rounding_of(shared, target, 1.0, "gradient")
    off = {name: float((target[name] - g).square().mean().sqrt()) for name, g in gradient.items()}
    assert max(off[name] / float(expected[name].max()) for name in off) < 8.0
    whole = math.hypot(*(float(g.norm()) for g in gradient.values()))
    assert float(gradient["attention.k.bias"].norm()) < 1e-15 * whole
    assert off["attention.k.bias"] == pytest.approx(float(expected["attention.k.bias"].max()), rel=1e-3)


@pytest.mark.parametrize("share", ["gradient", "delta"])
def test_the_image_behind_such_a_tensor_is_found_and_explained(share):
    torch.manual_seed(1)
    model, images = Tokens(), torch.rand(1, 3, 6, 6)
    seen = fedsim.observe(model, images, [3], share=share, local_steps=1 if share == "delta" else None)
    result = fedsim.attack("gauss_newton", seen)
    assert float((result.images - images).square().mean()) < 1e-6
    assert (result.certificate.values["explained"], result.certificate.values["trust"]) == (1.0, 1.0)


def test_weights_that_were_zero_and_stayed_zero_say_nothing():
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), Branch(), nn.Linear(48, 5)), torch.rand(1, 3, 4, 4)
    seen = fedsim.observe(model, images, [3], share="delta", local_steps=1)
    assert not seen.update.tensors["1.inner.bias"].any()
    result = fedsim.attack("gauss_newton", seen)
    assert result.status == "done", result.reason
    assert float((result.images - images).square().mean()) < 1e-12
    assert result.certificate.values["floor"] == sum(t.numel() for t in seen.update.tensors.values()) - 48


@pytest.mark.parametrize("scale", [1e-5, None])
def test_rounding_alone_explains_no_image_of_a_vit(scale):
    """Behind LayerScale the class token's row of the position embedding is a million times as large as the others."""
    torch.manual_seed(0)
    small = {"img_size": 8, "patch_size": 2, "depth": 2, "embed_dim": 64, "num_heads": 2, "num_classes": 10}
    vit = timm.create_model("vit_tiny_patch16_224", init_values=scale, **small).eval()
    observation = fedsim.observe(vit, torch.rand(1, 3, 8, 8), torch.tensor([3]))
    cpu, labels = torch.device("cpu"), torch.tensor([3])
    update = of_images(observation, shared_update(observation, "gradient", cpu))
    problem = make_problem(observation, update, labels, Pixels(), {}, cpu)
    (residual,) = make_residuals(problem, "gradient", GaussianPrior(), labels, cpu)
    assert residual.floor < 1e-4 * float((residual.weights * residual.target).square().sum())
