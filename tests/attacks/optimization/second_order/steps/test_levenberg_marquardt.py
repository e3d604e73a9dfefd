import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from attacks.forward_mode import jacobian
from attacks.optimization.second_order.steps.levenberg_marquardt import (
    DenseModel,
    LMState,
    NormalEquations,
    second_derivative,
    take_step,
)


def whole(r, J):
    return DenseModel(NormalEquations.of(r, J), lambda w: J.T @ w)


def solved(residual, start, steps=60):
    state = LMState(start)
    costs = []
    for _ in range(steps):
        take_step(state, residual, lambda x: whole(residual(x), jacobian(residual, x)))
        costs.append(state.cost)
        if state.ended:
            break
    return state, costs


def test_a_linear_system_takes_a_few_steps(rng):
    matrix = torch.randn(12, 5, generator=rng, dtype=torch.float64)
    right = torch.randn(12, generator=rng, dtype=torch.float64)
    state, _ = solved(lambda x: matrix @ x - right, torch.zeros(5, dtype=torch.float64), steps=8)
    assert torch.allclose(state.x, torch.linalg.lstsq(matrix, right[:, None]).solution[:, 0], atol=1e-9)


def test_a_step_is_that_of_the_damped_normal_equations(rng):
    J, r = torch.randn(30, 7, generator=rng, dtype=torch.float64), torch.randn(30, generator=rng, dtype=torch.float64)
    normal = J.T @ J
    oracle = -torch.linalg.solve(normal + 0.1 * torch.diag(normal.diagonal()), J.T @ r)
    assert torch.allclose(whole(r, J).step(0.1)[0], oracle, rtol=1e-10)


def test_a_bend_is_the_second_order_term_of_the_geodesic(rng):
    """r(x) = Jx + ½xᵀBx: its second derivative along a step is stepᵀB step, which differences give exactly."""
    J, r = torch.randn(30, 7, generator=rng, dtype=torch.float64), torch.randn(30, generator=rng, dtype=torch.float64)
    B = torch.randn(30, 7, 7, generator=rng, dtype=torch.float64)

    def residual(x):
        return r + J @ x + 0.5 * torch.einsum("i,kij,j->k", x, B, x)

    model, zero = whole(r, J), torch.zeros(7, dtype=torch.float64)
    step = model.step(0.1)[0]
    second = torch.einsum("i,kij,j->k", step, B + B.transpose(1, 2), step) / 2.0
    assert torch.allclose(second_derivative(residual, zero, step), second)
    normal = J.T @ J
    damped = torch.diag(normal.diagonal())
    oracle = -0.5 * torch.linalg.solve(normal + 0.1 * damped, J.T @ second)
    bent, share = model.bend(0.1, step, second)
    assert torch.allclose(bent, oracle)
    assert share == pytest.approx(float((damped.sqrt() @ oracle).norm() / (damped.sqrt() @ step).norm()))


def test_bent_steps_need_fewer_than_straight_ones_along_a_curved_valley():
    def residual(x):
        return torch.stack([100.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])

    class Straight:
        def __init__(self, model):
            self.step, self.cost = model.step, model.cost

    def steps(bends):
        state = LMState(torch.tensor([-1.2, 1.0], dtype=torch.float64))
        for taken in range(1000):
            if float(residual(state.x).square().sum()) < 1e-20:
                return taken
            take_step(state, residual, lambda x: bends(whole(residual(x), jacobian(residual, x))))
        return 1000

    assert 2 * steps(lambda model: model) < steps(Straight)


def test_the_sum_of_two_rounds_is_that_of_their_rows_together(rng):
    J, r = torch.randn(30, 7, generator=rng, dtype=torch.float64), torch.randn(30, generator=rng, dtype=torch.float64)
    found = NormalEquations.of(r[:11], J[:11]) + NormalEquations.of(r[11:], J[11:])
    assert torch.allclose(found.matrix, J.T @ J)
    assert torch.allclose(found.slope, J.T @ r)
    assert abs(found.cost - float(r @ r)) < 1e-12


def test_rosenbrocks_valley_ends_where_scipy_ends_and_no_step_goes_up():
    def residual(x):
        return torch.stack([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])

    start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    state, costs = solved(residual, start)
    oracle = least_squares(lambda x: np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]]), start.numpy(), method="lm")
    assert torch.allclose(state.x, torch.from_numpy(oracle.x), atol=1e-8)
    assert costs == sorted(costs, reverse=True)


def test_a_direction_that_nothing_determines_stays_where_it_was():
    state, _ = solved(lambda x: x[:1] ** 2 - 4.0, torch.tensor([1.0, 7.0], dtype=torch.float64))
    assert torch.allclose(state.x, torch.tensor([2.0, 7.0], dtype=torch.float64))


def test_where_every_step_goes_up_it_ends():
    state, _ = solved(lambda x: torch.ones(3, dtype=torch.float64) + 0.0 * x, torch.zeros(3, dtype=torch.float64))
    assert state.ended
    assert state.cost == 3.0


def test_unknowns_of_one_unit_are_damped_alike(rng):
    J, r = torch.randn(30, 7, generator=rng, dtype=torch.float64), torch.randn(30, generator=rng, dtype=torch.float64)
    J = J * torch.tensor([1.0, 10.0, 0.1, 1.0, 3.0, 1.0, 20.0], dtype=torch.float64)
    normal, step = J.T @ J, DenseModel(NormalEquations.of(r, J), lambda w: J.T @ w, even=4).step(0.1)[0]
    units = torch.cat([normal.diagonal()[:4].mean().expand(4), normal.diagonal()[4:]])
    assert torch.allclose(step, -torch.linalg.solve(normal + 0.1 * torch.diag(units), J.T @ r), rtol=1e-10)
