"""Rows of several rounds: products with them go round by round."""

from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.forward_mode import jacobian
from attacks.optimization import Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual.residual import make_residuals
from defenses import GradientClip, GradientNoise, TopK
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import ModelSpec


@pytest.mark.parametrize("rounds", [1, 3])
def test_products_and_normal_equations_are_those_of_all_rows(cpu, rng, rounds):
    """The prior's rows stand last, and belong to the first round."""
    torch.manual_seed(0)
    model, labels = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4), torch.nn.Tanh()), torch.tensor([1])
    image, problems = torch.rand(1, 3, 2, 2, generator=rng), []
    for number in range(rounds):
        seen = fedsim.observe(model, image, labels, defense=[GradientNoise(relative_norm=0.1)], seed=number)
        problems.append(make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu))
        with torch.no_grad():
            model[1].weight.add_(0.1)
    whole = replace(problems[0], later=tuple(problems[1:]))
    residual = make_residuals(whole, "gradient", GaussianPrior(), labels, cpu)[-1]
    x = torch.randn(12, generator=rng).double()
    r, J = residual(x), jacobian(residual, x)
    assert len(r) == rounds * 52 + 12
    w = torch.randn(len(r), generator=rng).double()
    assert torch.allclose(residual.transposed(x, w), J.T @ w)
    normal = residual.normal(x)
    assert torch.allclose(normal.matrix, J.T @ J)
    assert torch.allclose(normal.slope, J.T @ r)


@pytest.mark.parametrize("order", [("topk", "clip"), ("clip", "topk")])
def test_the_client_s_own_image_leaves_nothing_whichever_of_pruning_and_clipping_is_first(cpu, rng, order):
    torch.manual_seed(0)
    model, labels = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4), torch.nn.Tanh()), torch.tensor([1])
    image = torch.rand(1, 3, 2, 2, generator=rng)
    both = {"topk": TopK(ratio=0.3), "clip": GradientClip(0.01)}
    seen = fedsim.observe(model, image, labels, defense=[both[name] for name in order])
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), labels, Pixels(), {}, cpu)
    residual = make_residuals(problem, "gradient", GaussianPrior(), labels, cpu)[0]
    assert float(residual(seen.normalised(image).flatten().double()).norm()) < 1e-5


ADAMW = {"_target_": "torch.optim.AdamW", "lr": 1e-3, "weight_decay": 0.05}


def with_batch_norm():
    """Biases before it have no gradient, and move by Adam's whole step all the same."""
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Conv2d(6, 6, 3)
    return torch.nn.Sequential(
        *layers, torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(96, 10)
    )


@pytest.mark.parametrize(
    ("make", "how", "own"),
    [
        (lambda: ModelSpec("vit_nano_patch2_8", 10, kwargs={"depth": 1}).build(0), {}, 2.0),
        (lambda: ModelSpec("vit_nano_patch2_8", 10, kwargs={"depth": 1}).build(0), {"precision": "bfloat16"}, 4.0),
        (
            lambda: ModelSpec("vit_nano_patch2_8", 10, kwargs={"depth": 1}).build(0),
            {"defense": [GradientClip(0.01)]},
            2.0,
        ),
        (with_batch_norm, {}, 2.0),
    ],
    ids=["float32", "bfloat16", "clipped", "batch_norm"],
)
def test_adam_s_own_arithmetic_is_within_the_floor_and_other_images_are_not(make, how, own, cpu, rng):
    """Of the rounding of weights alone the true image is outside, and a search goes on that has found it."""
    model, labels, (image, *others) = make(), torch.tensor([1]), torch.rand(4, 1, 3, 8, 8, generator=rng)
    seen = fedsim.observe(model, image, labels, share="delta", local_steps=5, optimizer=ADAMW, **how)
    problem = make_problem(seen, shared_update(seen, "unroll", cpu), labels, Pixels(), {}, cpu)
    residual = make_residuals(problem, "unroll", GaussianPrior(), labels, cpu)[0]

    def left(images):
        with torch.no_grad():
            return float(residual(seen.normalised(images).flatten().double()).square().sum()) / residual.floor

    assert left(image) < own
    assert min(map(left, others)) > (6.0 if how.get("precision") else 1e3)
