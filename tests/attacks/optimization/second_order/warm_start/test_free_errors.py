"""Errors of logits as unknowns, against those of the client's own images."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch.func import functional_call
from torch.nn import functional

import fedsim
from attacks.optimization import Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual.residual import make_residuals
from attacks.optimization.second_order.warm_start import free_errors
from attacks.optimization.second_order.warm_start.free_errors import FreeErrors
from defenses import Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import Architecture, ModelSpec

LABELS = torch.tensor([3, 4])
SHAPE = (2, 3, 8, 8)


@pytest.fixture
def images():
    return torch.from_numpy(load_digits().images[3:5] / 16).float()[:, None].expand(SHAPE).contiguous()


@pytest.fixture
def vit():
    return Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)


def errors_of(seen, cpu, labels=LABELS, local="gradient"):
    """With labels of which nothing depends."""
    problem = make_problem(seen, shared_update(seen, local, cpu), torch.zeros_like(labels), Pixels(), {}, cpu)
    residual = make_residuals(problem, local, GaussianPrior(), problem.labels, cpu)[0]
    return FreeErrors.of(problem, residual, lambda x: x.view(len(labels), *SHAPE[1:]), local, cpu, 4.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("defense", [[], [Withhold(["head.*"])]])
def test_at_the_images_they_are_the_clients_and_tell_the_labels(vit, images, cpu, smoothing, defense):
    seen = fedsim.observe(vit, images, LABELS, defense=defense, label_smoothing=smoothing)
    errors, x = errors_of(seen, cpu), seen.normalised(images.double()).flatten()
    wanted = functional.one_hot(LABELS, 10) * (1 - smoothing) + smoothing / 10
    logits = functional_call(vit, seen.global_state, (seen.normalised(images).float(),)).double()
    labels, left = errors.labels(x)
    assert labels.tolist() == LABELS.tolist()
    assert left < 1e-9
    u = errors.begin(x)
    assert torch.allclose(u[-errors.size :].view(2, 10), logits.softmax(1) - wanted, atol=1e-2)
    assert float(errors.free(u).square().sum()) == pytest.approx(float(errors.left(x[None])[0]), rel=1e-6)
    assert float(errors.left(torch.stack([x, -x]))[1]) > 100 * left


def test_of_a_model_that_is_surer_than_smoothed_labels_are_they_tell_the_labels_too(vit, images, cpu):
    """The errors of the labels are above zero there, and the least those of another class; behind a bound."""
    with torch.no_grad():
        vit.head.weight.mul_(30.0)
        probs = vit(2.0 * images - 1.0).softmax(dim=1)
    labels = probs.argmax(dim=1)
    assert float(probs.amax(dim=1).min()) > 0.92
    clip = {"gradient_clip": {"max_norm": 0.01}}
    seen = fedsim.observe(vit, images, labels, defense=[clip], label_smoothing=0.1)
    errors = errors_of(seen, cpu)
    x = seen.normalised(images.double()).flatten()
    assert errors.begin(x)[-errors.size :].view(2, 10).argmin(dim=1).tolist() != labels.tolist()
    assert errors.labels(x)[0].tolist() == labels.tolist()


def test_images_that_batchnorm_mixes_have_none(cpu):
    """One value a channel: an image alone has no statistics; a search goes on without."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(192, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Linear(32, 10)
    mlp = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    found = load_digits()
    digits = torch.from_numpy(found.images[:40] / 16).float()[:, None].expand(-1, *SHAPE[1:]).contiguous()
    labels = torch.from_numpy(found.target[:40])
    seen = fedsim.observe(mlp, digits[3:5], LABELS, defense=[Withhold(["1.*", "4.*"])])
    assert errors_of(seen, cpu) is None
    seen = seen.with_public_images(digits[10:], labels[10:])
    search = {"labels": [3, 4], "starts": ["public"], "steps": 1, "restarts": 1}
    assert fedsim.attack("gauss_newton", seen, **search).status == "done"


def test_a_bound_scales_them(vit, images, cpu):
    plain, clipped = (
        errors_of(fedsim.observe(vit, images, LABELS, defense=defense), cpu)
        for defense in ([], [{"gradient_clip": {"max_norm": 0.01}}])
    )
    x = (2.0 * images - 1.0).double().flatten()
    each = [errors.begin(x)[-errors.size :] for errors in (plain, clipped)]
    assert float(torch.cosine_similarity(*each, dim=0)) > 0.999
    assert float(each[1].norm()) < 0.1 * float(each[0].norm())


def test_they_are_of_one_gradient_of_few_images(vit, images, cpu, monkeypatch):
    steps = fedsim.observe(vit, images, LABELS, share="delta", local_steps=2, lr=0.1)
    assert errors_of(steps, cpu, local="unroll") is None
    seen = fedsim.observe(vit, images, LABELS)
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), LABELS, Pixels(), {}, cpu)
    residual = make_residuals(problem, "gradient", GaussianPrior(), LABELS, cpu)[0]
    given = residual, lambda x: x.view(SHAPE), "gradient", cpu, 4.0
    assert FreeErrors.of(problem, *given) is not None
    assert FreeErrors.of(replace(problem, later=(problem,)), *given) is None
    monkeypatch.setattr(free_errors, "MOST_ERRORS", 19)
    assert FreeErrors.of(problem, *given) is None
