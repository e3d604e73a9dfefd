import pytest
import torch

from attacks.optimization.search.optimisers import Optimiser, OptimiserSettings
from fedsim.errors import ConfigError

GOAL = torch.tensor([[1.0, -2.0], [0.5, 3.0]])


def search(settings, steps=1, factor=1.0, start=None):
    """Squared distance from GOAL, a row a candidate."""
    point = (torch.zeros(2, 2) if start is None else start.clone()).requires_grad_()
    optimiser = Optimiser(settings, {"point": point})

    def evaluate():
        point.grad = 2 * (point.detach() - GOAL)
        return (point.detach() - GOAL).square().sum(dim=1)

    for _ in range(steps):
        optimiser.step(evaluate, factor)
    return point.detach(), optimiser


def test_signed_steps_have_the_length_of_the_rate():
    point, _ = search(OptimiserSettings("signed_adam", 0.1), factor=0.5)
    torch.testing.assert_close(point, 0.05 * GOAL.sign())


@pytest.mark.parametrize("name", ["adam", "signed_adam"])
def test_a_candidate_moves_as_it_would_alone(name):
    settings = OptimiserSettings(name, 0.05, clip=1.0 if name == "adam" else None)
    together, _ = search(settings, steps=7)
    alone = torch.zeros(1, 2).requires_grad_()
    optimiser = Optimiser(settings, {"point": alone})

    def evaluate():
        alone.grad = 2 * (alone.detach() - GOAL[1:])
        return (alone.detach() - GOAL[1:]).square().sum(dim=1)

    for _ in range(7):
        optimiser.step(evaluate, 1.0)
    torch.testing.assert_close(together[1:], alone.detach())


def test_adam_reaches_the_minimum():
    point, _ = search(OptimiserSettings("adam", 0.05), 400)
    torch.testing.assert_close(point, GOAL, atol=1e-2, rtol=0)


def test_lbfgs_solves_a_quadratic_in_a_call():
    point = torch.zeros(1, 2).requires_grad_()
    optimiser = Optimiser(OptimiserSettings("lbfgs", 1.0), {"point": point})

    def evaluate():
        point.grad = 2 * (point.detach() - GOAL[:1])
        return (point.detach() - GOAL[:1]).square().sum(dim=1)

    optimiser.step(evaluate, 1.0)
    torch.testing.assert_close(point.detach(), GOAL[:1])


def test_what_is_remembered_gives_the_same_next_step():
    settings = OptimiserSettings("adam", 0.1)
    point, optimiser = search(settings, 5)
    whole, _ = search(settings, 6)
    again = point.clone().requires_grad_()
    other = Optimiser(settings, {"point": again})
    other.remember({name: value.clone() for name, value in optimiser.memory().items()})

    def evaluate():
        again.grad = 2 * (again.detach() - GOAL)
        return torch.zeros(2)

    other.step(evaluate, 1.0)
    assert torch.equal(again.detach(), whole)


def test_forgetting_touches_the_marked_candidates_alone():
    _, optimiser = search(OptimiserSettings("adam", 0.1), 3)
    before = optimiser.memory()["0/exp_avg"].clone()
    optimiser.forget(torch.tensor([True, False]))
    after = optimiser.memory()["0/exp_avg"]
    assert not after[0].any()
    assert torch.equal(after[1], before[1])


def test_noise_has_its_deviation_and_its_own_generators():
    settings = OptimiserSettings("adam", 0.5, langevin=0.2)
    optimiser = Optimiser(settings, {"point": torch.zeros(1).requires_grad_()})
    pixels = torch.zeros(2, 40_000)
    optimiser.add_noise(pixels, 0.5, [torch.Generator().manual_seed(s) for s in (1, 2)])
    assert pixels.std(dim=1).tolist() == pytest.approx([0.05, 0.05], rel=0.05)
    expected = 0.05 * torch.randn(40_000, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(pixels[1], expected)


@pytest.mark.parametrize(
    "settings", [{"name": "adagrad"}, {"lr": 0.0}, {"langevin": -1.0}, {"clip": 1.0, "name": "signed_adam"}]
)
def test_wrong_settings_are_named(settings):
    with pytest.raises(ConfigError, match=f"optimiser.{next(iter(settings))}"):
        OptimiserSettings(**settings)
