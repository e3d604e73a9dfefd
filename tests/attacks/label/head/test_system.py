"""The reduced equations and their derivatives against the full ones."""

import torch

from attacks.label.head import system as hs


def test_the_true_features_lie_in_the_reduced_space_and_solve_it(problem):
    weights, h, _, errors, gradient = problem()
    system = hs.head_system(weights, gradient, 4, 1e-15)
    rows = h @ system.basis.T
    torch.testing.assert_close(rows @ system.basis, h)
    torch.testing.assert_close(errors.T @ rows, system.target)
    torch.testing.assert_close(rows @ system.head.T, h @ weights.T)
    free = (rows - system.origin) @ system.directions
    torch.testing.assert_close(system.origin + free @ system.directions.T, rows)
    assert system.outside < 1e-12


def test_normal_equations_are_those_of_the_jacobian(problem):
    weights, _, targets, _, gradient = problem(seed=1)
    system = hs.head_system(weights, gradient, 4, 1e-15)
    free = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    targets = targets.expand(2, -1, -1)
    state = hs.evaluate(system, free, targets)
    hessian, slope = hs.normal_equations(system, free, *state)
    for index in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: hs.evaluate(system, x[None], targets[:1])[2], free[index]
        ).reshape(-1, 12)
        torch.testing.assert_close(hessian[index], jacobian.T @ jacobian)
        torch.testing.assert_close(slope[index], jacobian.T @ state[2][index].flatten())


def test_noise_and_too_large_a_rank_show_outside(problem):
    weights, _, _, _, gradient = problem()
    noise = 1e-3 * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert hs.head_system(weights, gradient + noise, 4, 1e-15).outside > 1e-4
    assert hs.head_system(weights, gradient, 3, 1e-15).outside > 1e-3
