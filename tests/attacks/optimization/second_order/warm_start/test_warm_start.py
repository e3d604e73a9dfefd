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
from attacks.optimization.second_order.warm_start import RACERS, WarmStart
from attacks.optimization.second_order.warm_start.warm_start import RACE
from defenses import GradientNoise, Withhold
from fedsim.bounds.gaussian_prior import GaussianPrior
from fedsim.models import Architecture, ModelSpec


@pytest.fixture
def images(rng):
    """Two of the prior, the client's and another."""
    return GaussianPrior().draw((2, 3, 8, 8), rng).clamp(0, 1).float()


def warm_start_of(images, memory_gib, cpu, report=lambda cost: None, defense=(), width=32):
    spec = ModelSpec("vit_nano_patch2_8", num_classes=10, kwargs={"embed_dim": width, "depth": 1})
    vit = Architecture(spec, (), 0).build(keep=True)
    seen = fedsim.observe(vit, images[:1], torch.tensor([3]), defense=list(defense))
    problem = make_problem(seen, shared_update(seen, "gradient", cpu), torch.tensor([3]), Pixels(), {}, cpu)
    task = SearchTask([problem], SquaredL2(), "gradient", Budget(memory_gib=memory_gib), cpu)
    prior = GaussianPrior()
    return WarmStart(problem, task, make_plan(problem, task, prior), 30, prior, report)


@pytest.mark.parametrize("memory_gib", [4.0, 0.03, 0.0001])
def test_many_points_explain_what_each_does_alone(images, memory_gib, cpu, rng):
    """All at once, some at once, or one after the other where J is not whole."""
    warm_start = warm_start_of(images, memory_gib, cpu)
    assert warm_start.plan.whole == (memory_gib > 0.001)
    points = torch.randn(30, 192, generator=rng).double()
    points[4] = math.nan
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        costs = warm_start.costs(points)
        alone = [float(warm_start._own_residual(warm_start.plan.unknowns(x)).square().sum()) for x in points]
    assert costs[4] == math.inf
    alone[4] = math.inf
    assert costs.tolist() == pytest.approx(alone, rel=1e-9)


def points_of(warm_start, images):
    return [warm_start.problem.observation.normalised(image[None].double()).flatten() for image in images]


@pytest.mark.parametrize("memory_gib", [4.0, 0.025])
def test_a_race_tells_which_point_comes_near(images, memory_gib, cpu):
    steps: list[float] = []
    warm_start = warm_start_of(images, memory_gib, cpu, steps.append)
    assert warm_start.plan.whole == (memory_gib > 1.0)
    truth, other = points_of(warm_start, images)
    near = truth + 0.5 * (other - truth)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        ends = warm_start.race([other, near])
        costs = warm_start.costs(torch.stack(ends))
    assert costs[0] < costs[1]
    assert float((ends[0] - truth).norm()) < 0.5 * float((ends[1] - truth).norm())
    assert len(steps) == 2 * RACE


@pytest.mark.parametrize(("memory_gib", "race"), [(4.0, [3] * 8), (0.025, [3] * 8 + [6] * 4 + [12] * 2)])
def test_the_better_half_goes_on_where_j_is_not_whole(images, memory_gib, race, cpu, monkeypatch):
    """The second start falls more slowly at first, and further: it wins where there is time."""
    taken: list[int] = []

    def towards(self, point, steps, with_prior, system):
        taken.append(steps)
        cost, fall, *rest = point.tolist()
        return torch.tensor([cost * fall**steps, fall, *rest]), False

    monkeypatch.setattr(WarmStart, "_towards", towards)
    monkeypatch.setattr(WarmStart, "costs", lambda self, points: points[:, 0])
    points = [torch.tensor([1.0, 0.8]), torch.tensor([2.0, 0.7]), *(torch.tensor([5.0 + k, 0.9]) for k in range(6))]
    warm_start = warm_start_of(images, memory_gib, cpu)
    ends = warm_start.race(points)
    assert taken == race
    assert len(ends) == 8
    assert ends[0][1] == pytest.approx(0.8 if memory_gib == 4.0 else 0.7)
    if memory_gib == 4.0:  # where the first led nowhere
        others = warm_start.race_on(ends[1:])
        assert taken[8:] == [6] * 4 + [12] * 2
        assert sorted(float(end[1]) for end in others) == pytest.approx([0.7, *[0.9] * 6])
        assert others[0][1] == pytest.approx(0.7)


def test_a_point_that_explains_enough_ends_the_race(images, cpu):
    steps: list[float] = []
    warm_start = warm_start_of(images, 4.0, cpu, steps.append, width=48)
    truth, other = points_of(warm_start, images)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        ends = warm_start.race([other, truth + 1e-3 * (other - truth), 2.0 * other])
    assert float((ends[0] - truth).norm()) < 0.01 * float((ends[1] - truth).norm())
    assert torch.equal(ends[2], 2.0 * other)
    assert len(steps) <= 2 * RACE


def test_behind_noise_all_race(images, cpu):
    """A wrong image may explain a noisy update."""
    steps: list[float] = []
    warm_start = warm_start_of(images, 4.0, cpu, steps.append, [GradientNoise(relative_norm=0.1)])
    truth, other = points_of(warm_start, images)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        ends = warm_start.race([truth, other, 2.0 * other])
        costs = warm_start.costs(torch.stack(ends))
    assert len(steps) >= 3
    assert costs.tolist() == sorted(costs.tolist())


def test_an_end_that_explains_far_more_is_what_the_search_starts_from(images, cpu, monkeypatch):
    """Though it does not explain all: where J is whole too."""
    warm_start = warm_start_of(images, 4.0, cpu)
    truth, other = points_of(warm_start, images)
    near, hardly = truth + 1e-3 * (other - truth), other + 1e-3 * (truth - other)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        monkeypatch.setattr(WarmStart, "_gone", lambda *_: (near, False))
        assert torch.equal(warm_start.in_order(other), near)
        monkeypatch.setattr(WarmStart, "_gone", lambda *_: (hardly, False))
        assert torch.equal(warm_start.in_order(other), other)


def test_behind_noise_no_errors_name_labels(images, cpu):
    """They explain it at any image."""
    noisy, clear = (
        warm_start_of(images, 4.0, cpu, defense=[*noise, Withhold(["head.*"])])
        for noise in ([GradientNoise(relative_norm=10.0)], [])
    )
    for warm_start, expected in ((noisy, None), (clear, [3])):
        truth, _ = points_of(warm_start, images)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            labels = warm_start.labels(truth)
        assert (labels if labels is None else labels.tolist()) == expected


def test_the_race_counts_before_the_first_public_image(images, cpu):
    kinds = ["mean", "public", "public"]
    assert warm_start_of(images, 4.0, cpu).steps_of(kinds) == [0, 30 + RACERS * RACE, 30 + 2 * RACERS * RACE]
    assert warm_start_of(images, 0.025, cpu).steps_of(kinds) == [0, 30 + 3 * RACERS * RACE, 30]
