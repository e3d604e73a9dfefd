"""Rows of several rounds: products with them go round by round."""

from dataclasses import replace

import pytest
import torch

import fedsim
from attacks.forward_mode import jacobian
from attacks.optimization import Pixels
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.second_order.residual import make_residuals
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


def test_what_ten_steps_of_adam_leave_of_their_own_image_is_within_its_floor(cpu, rng):
    """Of the rounding of weights alone it was ten times as much, and a search went on with an image that was right."""
    model = ModelSpec("vit_nano_patch2_8", 10, kwargs={"depth": 1}).build(0)
    labels, adamw = torch.tensor([1]), {"_target_": "torch.optim.AdamW", "lr": 1e-3, "weight_decay": 0.05}
    ratios = []
    for image in torch.rand(3, 1, 3, 8, 8, generator=rng):
        seen = fedsim.observe(model, image, labels, share="delta", local_steps=10, optimizer=adamw)
        problem = make_problem(seen, shared_update(seen, "unroll", cpu), labels, Pixels(), {}, cpu)
        residual = make_residuals(problem, "unroll", GaussianPrior(), labels, cpu)[0]
        with torch.no_grad():
            ratios.append(float(residual(seen.normalised(image).flatten().double()).square().sum()) / residual.floor)
    assert 0.02 < min(ratios) <= max(ratios) < 2.0
