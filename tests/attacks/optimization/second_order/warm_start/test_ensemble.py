"""Images that are regressed on what would be shared of them."""

import math

import pytest
import torch
from scipy.optimize import least_squares

import fedsim
from attacks.optimization import Budget, Pixels, SquaredL2
from attacks.optimization.problem import make_problem, shared_update
from attacks.optimization.search.base import SearchTask
from attacks.optimization.second_order.stages import make_plan
from attacks.optimization.second_order.warm_start import Trail, WarmStart
from attacks.optimization.second_order.warm_start.ensemble import RIDGES, TIMES, Ensemble, regress
from defenses import GradientNoise
from tests.attacks.optimization.second_order.test_starts import digits as digits
from tests.attacks.optimization.second_order.test_starts import trained_mlp


@pytest.fixture(scope="module")
def mlp(digits):
    return trained_mlp(digits, 48)


ADAMW = {"_target_": "torch.optim.AdamW", "lr": 1e-3, "weight_decay": 0.05}


def draws(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def test_of_many_examples_of_a_line_behind_noise_it_is_the_posterior(rng):
    """Of z ~ N(0, I) and y = A·z + n, which was seen as y*: rows A·z - y*."""
    matrix, std = draws(rng, 6, 4), torch.full((6,), 0.7, dtype=torch.float64)
    true, noise = draws(rng, 4), std * draws(rng, 6)
    seen, examples = matrix @ true + noise, draws(rng, 1_500, 4)
    (found, *_) = regress(examples, examples @ matrix.T - seen, std.square())
    precision = torch.eye(4) + matrix.T @ (matrix / std.square()[:, None])
    mean = torch.linalg.solve(precision, matrix.T @ (seen / std.square()))
    assert torch.allclose(found.mean, mean, atol=0.1)
    root = found.root()
    assert torch.allclose(root.T @ root, torch.linalg.inv(precision), atol=0.1)


def test_its_error_is_that_of_each_example_estimated_from_the_others(rng):
    examples = draws(rng, 30, 3)
    rows = torch.sin(examples @ draws(rng, 3, 50))
    (found, *larger) = regress(examples, rows)
    errors = {ridge: [] for ridge in RIDGES}
    spread = torch.linalg.svdvals(rows - rows.mean(0))[0].square()
    for left_out in range(30):
        others = torch.arange(30) != left_out
        middle, centre = examples[others].mean(0), rows[others].mean(0)
        for ridge, each in errors.items():
            apart, wanted = rows[others] - centre, examples[others] - middle
            gain = torch.linalg.solve(apart @ apart.T + ridge * spread * torch.eye(29), wanted)
            each.append((examples[left_out] - middle - gain.T @ apart @ (rows[left_out] - centre)).square())
    variances = [float(torch.stack(each).mean()) for each in errors.values()]
    assert found.variance == pytest.approx(min(variances), rel=1e-3)
    assert [one.variance for one in larger] == pytest.approx(variances[-len(larger) :], rel=1e-3)


def test_rows_that_say_nothing_of_examples_leave_them_as_unknown_as_they_were(rng):
    (found, *_) = regress(draws(rng, 60, 3), draws(rng, 60, 200))
    assert found.variance > 0.8


def test_what_tells_nothing_leaves_the_examples_mean(rng):
    examples = draws(rng, 40, 3)
    (found, *_) = regress(examples, torch.ones(40, 5, dtype=torch.float64))
    assert torch.allclose(found.mean, examples.mean(0))


def test_a_distance_is_in_standard_deviations_of_the_estimates_own_error(rng):
    """Of a linear update behind noise it is that of the posterior, and the truth is about as far as it says."""
    A, examples = draws(rng, 6, 12), draws(rng, 400, 6)
    truths, far = draws(rng, 20, 6), []
    for true in truths:
        rows = (examples - true) @ A - draws(rng, 12)
        estimate = regress(examples, rows, 1.0)[0]
        far.append(float(estimate.distances(true[None])))
    posterior = torch.eye(6, dtype=torch.float64) + A @ A.T
    offset = draws(rng, 6)
    found = float(estimate.distances((estimate.mean + offset)[None]))
    assert found == pytest.approx(float(offset @ posterior @ offset), rel=0.3)
    assert sum(far) / len(far) == pytest.approx(6.0, rel=0.3)


def bent(true):
    """Waves, of which many are short beside the examples' spread."""
    waves = 1.1 * draws(torch.Generator().manual_seed(3), 8, 60)
    return lambda z: torch.sin(z @ waves) - torch.sin(true @ waves)


def solved(rows, **settings):
    costs = []
    ensemble = Ensemble(rows, lambda z: float(rows(z).square().sum()), 1e-9, costs.append, **settings)
    found = ensemble.run(draws(torch.Generator().manual_seed(1), 300, 8), torch.Generator().manual_seed(2))
    return found, costs


def test_it_comes_near_where_tangents_lead_elsewhere():
    true = torch.ones(8, dtype=torch.float64)
    rows = bent(true)
    (found, _), costs = solved(rows)
    assert float((found - true).norm()) < 1e-4 * float(true.norm())
    assert len(costs) <= TIMES
    tangents = least_squares(lambda z: rows(torch.from_numpy(z)).numpy(), [0.0] * 8, method="lm").x
    assert float((torch.from_numpy(tangents) - true).norm()) > 0.5 * float(true.norm())


def test_examples_at_which_nothing_is_told_are_left_out():
    true = torch.ones(8, dtype=torch.float64)
    rows = bent(true)
    (found, _), _ = solved(lambda z: torch.where(z[..., :1] > 1.6, math.nan, rows(z)))
    assert float((found - true).norm()) < 0.1 * float(true.norm())
    found, costs = solved(lambda z: rows(z) * math.nan)
    assert found is None
    assert costs == []


def test_few_examples_are_joined_by_draws_and_no_more_are_drawn_than_there_is_memory_for():
    seen = []

    def rows(z):
        seen.append(len(z))
        return bent(torch.zeros(8, dtype=torch.float64))(z)

    for most, count in ((1024, 256), (64, 64)):
        seen.clear()
        ensemble = Ensemble(rows, lambda z: 1.0, 0.0, lambda cost: None, most)
        ensemble.run(torch.zeros(5, 8).double(), torch.Generator())
        assert seen[0] == max(seen) == count


def test_of_no_more_draws_than_unknowns_it_comes_near_too():
    """Examples that are each other's mirror image would tell one another, and all would seem known."""
    rng, true = torch.Generator().manual_seed(5), torch.full((40,), 0.7, dtype=torch.float64)
    matrix = draws(rng, 40, 200) / 40**0.5

    def rows(z):
        return torch.tanh(z @ matrix) - torch.tanh(true @ matrix)

    ensemble = Ensemble(rows, lambda z: float(rows(z).square().sum()), 1e-12, lambda cost: None, most=50)
    found, _ = ensemble.run(draws(rng, 50, 40), rng)
    assert float((found - true).norm()) < 0.02 * float(true.norm())


def test_errors_that_are_alike_count_as_each_of_them(rng):
    examples, rows = draws(rng, 40, 3), draws(rng, 40, 20)
    each = regress(examples, rows, torch.full((20,), 0.3, dtype=torch.float64))
    alike = regress(examples, rows, 0.3)
    assert torch.allclose(each[-1].mean, alike[-1].mean)
    assert torch.allclose(*(one.root().T @ one.root() for one in (each[-1], alike[-1])))


def warm_start(model, digits, cpu, local="gradient", **kinds):
    images, labels = digits
    seen = fedsim.observe(model, images[:1], labels[:1], **kinds).with_public_images(
        images[1000:1300], labels[1000:1300]
    )
    problem = make_problem(seen, shared_update(seen, local, cpu), labels[:1], Pixels(), {}, cpu)
    task = SearchTask([problem], SquaredL2(), local, Budget(frames=0, save_every=1), cpu)
    trail, reported = Trail(), []
    found = WarmStart(
        problem, task, make_plan(problem, task, seen.image_prior), 30, seen.image_prior, reported.append, trail
    )
    points = torch.stack([seen.normalised(one[None].double()).flatten() for one in images[1000:1300]])
    return found, points, seen.normalised(images[:1].double()).flatten(), reported


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_digits_gradient_leads_from_public_digits_to_it(mlp, digits, cpu, noise):
    defense = {"defense": [GradientNoise(relative_norm=noise)]} if noise else {}
    start, points, true, reported = warm_start(mlp, digits, cpu, **defense)
    assert start.many_images is not None
    errors = [float((found - true).square().mean()) for found in (start.gathered(points, 0), points)]
    assert errors[0] < (0.02 if noise else 1e-4) * errors[1]
    assert 1 <= len(reported) <= TIMES


def test_behind_noise_the_likeliest_public_digits_are_nearer_than_others(mlp, digits, cpu):
    """What many tell together first."""
    start, points, true, _ = warm_start(mlp, digits, cpu, defense=[GradientNoise(relative_norm=0.1)])
    found = torch.stack(start.likely(torch.cat([points, points]), 0, 1000))
    assert len(found) == 1 + len(points)
    apart = (found - true).square().mean(1)
    assert float(apart[0]) < float(apart[1:9].mean()) < 0.8 * float(apart[1:].mean())
    varied = start.many_images.varied
    assert torch.allclose(varied.point(varied.unknowns(found[1])), found[1])


def test_a_killed_search_goes_on_with_the_likely_images_that_it_had(mlp, digits, cpu):
    start, points, *_ = warm_start(mlp, digits, cpu, defense=[GradientNoise(relative_norm=0.1)])
    found = start.likely(points, 0, 3)
    assert all(torch.equal(one, other) for one, other in zip(start.likely(points[:9], 1, 3), found, strict=True))
    assert len(found) == 3


def test_what_a_killed_search_had_gathered_is_not_gathered_again(mlp, digits, cpu):
    start, points, _, reported = warm_start(mlp, digits, cpu)
    found, steps = start.gathered(points, 0), len(reported)
    assert torch.equal(start.gathered(points, 1), found)
    assert len(reported) == steps


@pytest.mark.parametrize(
    ("local", "training", "left"),
    [
        ("gradient", {"max_grad_norm": 0.1}, 1e-3),
        ("unroll", {"share": "delta", "local_steps": 4, "lr": 0.1}, 1e-3),
        ("unroll", {"share": "delta", "local_steps": 4, "optimizer": ADAMW}, 0.05),
    ],
    ids=["clipped", "sgd", "adamw"],
)
def test_local_steps_and_a_clipped_gradient_lead_there_by_the_client_s_own_loss(
    mlp, digits, cpu, local, training, left
):
    start, points, true, _ = warm_start(mlp, digits, cpu, local, **training)
    errors = [float((found - true).square().mean()) for found in (start.gathered(points, 0), points)]
    assert errors[0] < left * errors[1]


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_of_local_steps_behind_noise_it_needs_the_errors_of_the_logits(mlp, digits, cpu, noise):
    defense = {"defense": [GradientNoise(relative_norm=noise)]} if noise else {}
    start, *_ = warm_start(mlp, digits, cpu, "unroll", share="delta", local_steps=3, **defense)
    assert (start.many_images is None) == bool(noise)
