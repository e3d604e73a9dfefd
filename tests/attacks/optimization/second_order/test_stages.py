"""J whole, in float32 from afar."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.stages import FAR, whole_model, whole_together
from attacks.optimization.second_order.steps.levenberg_marquardt import LMState, take_step


@pytest.fixture
def residuals():
    """Of 40 numbers that tell 5 unknowns, and the same in float32; the precisions that J was asked for in."""
    rng = torch.Generator().manual_seed(0)
    A = torch.randn(40, 5, generator=rng, dtype=torch.float64)
    truth, asked = torch.randn(5, generator=rng, dtype=torch.float64), []

    def shared(x):
        asked.append(x.dtype)
        return ((A.to(x) @ x.tanh()).view(8, 5),)

    target = shared(truth)[0].flatten()
    exact = Residual(shared, target, torch.full_like(target, 2.0), 1e-8, before=lambda x: 0.1 * x)
    return exact, replace(exact, weights=exact.weights.float()), truth, asked


@pytest.mark.parametrize(
    ("unknowns", "numbers", "whole"),
    [
        (192, 70_000, True),
        (192, 100, True),
        (2_000, 300_000, True),
        (2_000, 20_000_000, False),  # no memory
        (3_072, 20_000, True),
        (4_000, 4_000, True),
        (3_072, 640, False),  # the head alone: frequencies say what it leaves open
        (3_072, 900_000, False),
        (6_144, 8_000, True),
        (6_144, 20_000, False),
        (12_288, 8_000, False),
    ],
)
def test_jacobian_is_whole_where_it_is_small_and_where_few_numbers_determine_more_unknowns(unknowns, numbers, whole):
    target = {"weight": torch.empty(numbers, device="meta")}
    task = SimpleNamespace(budget=SimpleNamespace(memory_gib=16.0), device=torch.device("cpu"))
    found = whole_together(SimpleNamespace(rounds=[SimpleNamespace(target=target)]), unknowns, task)
    assert (found is not None) == whole
    assert found is None or found <= (128 if unknowns > 2_000 else 512)


def test_from_afar_the_step_is_that_of_float64_but_for_rounding(residuals):
    exact, coarse, truth, asked = residuals
    x = truth + 1.0
    expected = torch.autograd.functional.jacobian(exact, x)
    asked.clear()
    model = whole_model(exact, coarse, 3)(x)
    assert torch.float32 in asked
    slope, normal = expected.T @ exact(x), expected.T @ expected
    step = -torch.linalg.solve(normal + 0.1 * torch.diag(normal.diagonal()), slope)
    found, fall = model.step(0.1)
    torch.testing.assert_close(found, step, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found, step)
    assert model.cost == pytest.approx(float(exact(x).square().sum()), rel=1e-14)
    assert fall == pytest.approx(-float(2.0 * slope @ step + step @ normal @ step), rel=1e-4)


def test_near_the_end_all_is_float64(residuals):
    exact, coarse, truth, asked = residuals
    x = truth + 1e-5
    assert float(exact(x)[:40].square().sum()) < FAR * exact.floor
    asked.clear()
    model = whole_model(exact, coarse, 3)(x)
    assert set(asked) == {torch.float64}
    J = torch.autograd.functional.jacobian(exact, x)
    step = -torch.linalg.solve(J.T @ J + 1e-3 * torch.diag((J.T @ J).diagonal()), J.T @ exact(x))
    torch.testing.assert_close(model.step(1e-3)[0], step, rtol=1e-9, atol=1e-12)


def test_a_search_ends_where_float64_does(residuals):
    exact, coarse, truth, _ = residuals
    exact = replace(exact, before=None)
    state = LMState(truth + 1.0)
    for _ in range(30):
        if not state.ended:
            take_step(state, exact, whole_model(exact, replace(coarse, before=None), 5))
    torch.testing.assert_close(state.x, truth, rtol=0.0, atol=1e-12)
