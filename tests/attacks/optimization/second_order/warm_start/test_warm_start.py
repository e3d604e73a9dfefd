"""How much points explain, many at once."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedsim
from attacks.optimization import Budget, Pixels, SquaredL2
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.search.base import SearchTask
from attacks.optimization.second_order.stages import make_plan
from attacks.optimization.second_order.warm_start import WarmStart
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import Architecture, ModelSpec


@pytest.mark.parametrize("memory_gib", [4.0, 0.2, 0.0001])
def test_many_points_explain_what_each_does_alone(memory_gib, cpu, rng):
    """All at once, some at once, or one after the other where J is not whole."""
    vit = Architecture(ModelSpec("vit_nano_patch2_8", num_classes=10), (), 0).build(keep=True)
    seen = fedsim.observe(vit, torch.rand(1, 3, 8, 8, generator=rng), torch.tensor([3]))
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), torch.tensor([3]), Pixels(), {}, cpu)
    task = SearchTask([problem], SquaredL2(), "gradient", Budget(memory_gib=memory_gib), cpu)
    prior = GaussianPrior()
    warm_start = WarmStart(problem, task, make_plan(problem, task, prior), prior, 30, lambda cost: None)
    assert warm_start.plan.whole == (memory_gib > 0.001)
    points = torch.randn(30, 192, generator=rng).double()
    points[4] = math.nan
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        costs = warm_start.costs(points)
        alone = [float(warm_start._residual(warm_start.plan.unknowns(x)).square().sum()) for x in points]
    assert costs[4] == math.inf
    alone[4] = math.inf
    assert costs.tolist() == pytest.approx(alone, rel=1e-9)
