"""The bound by the whole Jacobian, against images that are off by a known distance."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedsim
from attacks.base import Reconstruction
from attacks.certificate.confirm import confirmed
from attacks.certificate.jacobian import jacobian_bound
from attacks.forward_mode import jacobian
from attacks.result import Certificate
from tests.support.clients import observe_client

TINY = ("data=digits", "model=vit_nano", "+model.kwargs.depth=1")


@pytest.fixture(scope="module")
def plain():
    return observe_client(*TINY)


def test_jacobian_is_that_of_finite_differences():
    def function(x):
        return torch.stack([x[0] * x[1], x[1].sin(), x.square().sum()])

    at = torch.tensor([0.3, -0.7], dtype=torch.float64)
    rows = [(function(at + step) - function(at - step)) / 2e-6 for step in 1e-6 * torch.eye(2, dtype=torch.float64)]
    torch.testing.assert_close(jacobian(function, at), torch.stack(rows).T, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-5])
def test_the_bound_holds_for_an_image_that_is_off(plain, size):
    observation, truth = plain
    rng = torch.Generator().manual_seed(1)
    off = truth.images + size * torch.randn(truth.images.shape, generator=rng, dtype=truth.images.dtype)
    update = observation.replay(off, truth.labels)
    again = replace(observation, update=update)
    bound = jacobian_bound(observation, Reconstruction(off, truth.labels), again)
    assert bound is not None
    if size:
        error = -20 * torch.log10((off - truth.images).square().mean().sqrt())
        assert 30 < bound.psnr <= float(error)
    else:
        assert 60 < bound.psnr < 90, "rounding to float32 is all that is left"


def test_defended_several_steps_and_large_images_have_none(plain):
    observation, truth = plain
    result = Reconstruction(truth.images, truth.labels)
    clipped, _ = observe_client(*TINY, "defense=gradient_clip", "defense.gradient_clip.max_norm=0.1")
    assert jacobian_bound(clipped, result, clipped) is None
    delta, _ = observe_client(*TINY, "client.share=delta")
    assert jacobian_bound(delta, result, delta) is None
    assert jacobian_bound(observation, Reconstruction(torch.zeros(1, 3, 32, 32), truth.labels), observation) is None


@pytest.mark.parametrize("recipe", ["head", "norm"])
def test_fewer_numbers_than_pixels_bound_nothing(recipe):
    """A direction that no equation has is in no singular value of a wide Jacobian either."""
    settings = ("finetune=head",) if recipe == "head" else ("finetune=norm", "finetune.head=false")
    observation, truth = observe_client(*TINY, *settings)
    few = replace(observation.update, tensors=dict(list(observation.update.tensors.items())[-1:]))
    seen = replace(observation, update=few)
    assert sum(tensor.numel() for tensor in few.tensors.values()) < truth.images.numel()
    assert jacobian_bound(seen, Reconstruction(truth.images, truth.labels), seen) is None


@pytest.mark.parametrize("circular", [True, False])
def test_a_shifted_image_that_a_model_cannot_tell_is_not_certified(circular):
    torch.manual_seed(0)
    padding = {"padding": 1, "padding_mode": "circular" if circular else "zeros"}
    layers = nn.Conv2d(3, 24, 3, **padding), nn.Sigmoid(), nn.Conv2d(24, 24, 3, **padding), nn.Sigmoid()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    image = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    seen = fedsim.observe(model, image, [0], mean=(0.5,) * 3, std=(0.25,) * 3)
    for given in (image, image.roll(2, 3)):
        claim = Reconstruction(given, torch.tensor([0]), certificate=Certificate("certified", "a claim", {}))
        result = confirmed(seen, claim, jacobian_bound)
        if circular:
            assert result.certificate.status == "uncertified"
            assert "the image shifted by" in result.certificate.reason
        else:
            assert (result.certificate.status == "certified") == (given is image)
