import numpy as np
import torch
from scipy.optimize import least_squares

from attacks.forward_mode import jacobian
from attacks.optimization.second_order.levenberg_marquardt import Damped, Normal, Whole, take_step


def solved(residual, start, steps=60):
    state = Damped(start)
    costs = []
    for _ in range(steps):
        take_step(state, residual, lambda x: Whole(Normal.of(residual(x), jacobian(residual, x))))
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
    assert torch.allclose(Whole(Normal.of(r, J)).step(0.1)[0], oracle, rtol=1e-10)


def test_the_sum_of_two_rounds_is_that_of_their_rows_together(rng):
    J, r = torch.randn(30, 7, generator=rng, dtype=torch.float64), torch.randn(30, generator=rng, dtype=torch.float64)
    found = Normal.of(r[:11], J[:11]) + Normal.of(r[11:], J[11:])
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
