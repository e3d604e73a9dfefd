"""The reduced equations and their derivatives against the full ones."""

import pytest
import torch
import torch.nn.functional as F

from attacks.label.head import system as hs


def problem(seed=0, classes=6, width=9, labels=(0, 1, 1, 4), smoothing=0.0):
    rng = torch.Generator().manual_seed(seed)
    weights = torch.randn(classes, width + 1, generator=rng, dtype=torch.float64)
    h = torch.cat([torch.randn(len(labels), width, generator=rng, dtype=torch.float64), torch.ones(len(labels), 1)], 1)
    h = h.double()
    targets = F.one_hot(torch.tensor(labels), classes).double() * (1 - smoothing) + smoothing / classes
    errors = (h @ weights.T).softmax(dim=1) - targets
    return weights, h, targets, errors, errors.T @ h / len(labels)


def test_the_true_features_lie_in_the_reduced_space_and_solve_it():
    weights, h, _, errors, gradient = problem()
    system = hs.head_system(weights, gradient, 4, 1e-15)
    rows = h @ system.basis.T
    torch.testing.assert_close(rows @ system.basis, h)
    torch.testing.assert_close(errors.T @ rows, system.target)
    torch.testing.assert_close(rows @ system.head.T, h @ weights.T)
    free = (rows - system.origin) @ system.directions
    torch.testing.assert_close(system.origin + free @ system.directions.T, rows)
    assert system.outside < 1e-12


def test_normal_equations_are_those_of_the_jacobian():
    weights, _, targets, _, gradient = problem(seed=1)
    system = hs.head_system(weights, gradient, 4, 1e-15)
    free = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    targets = targets.expand(2, -1, -1)
    state = hs._evaluate(system, free, targets)
    hessian, slope = hs.normal_equations(system, free, *state)
    for index in range(2):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: hs._evaluate(system, x[None], targets[:1])[2], free[index]
        ).reshape(-1, 12)
        torch.testing.assert_close(hessian[index], jacobian.T @ jacobian)
        torch.testing.assert_close(slope[index], jacobian.T @ state[2][index].flatten())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_solver_finds_the_features(smoothing):
    weights, h, _, _, gradient = problem(seed=3, classes=10, smoothing=smoothing)
    system = hs.head_system(weights, gradient, 4, 1e-15)
    labels = torch.tensor([[0, 1, 1, 4], [0, 0, 1, 4]])
    solution = hs.solve_rows(system, labels, smoothing, 8, 100, 1e-10, torch.Generator().manual_seed(0))
    assert float(solution.residual[0]) < 1e-9
    assert float(solution.residual[1]) > 1e-2
    found = solution.rows[0] @ system.basis
    nearest = torch.cdist(found, h, compute_mode="donot_use_mm_for_euclid_dist").min(dim=0).values
    assert float(nearest.max()) < 1e-6


def test_noise_and_too_large_a_rank_show_outside():
    weights, _, _, _, gradient = problem()
    noise = 1e-3 * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert hs.head_system(weights, gradient + noise, 4, 1e-15).outside > 1e-4
    assert hs.head_system(weights, gradient, 3, 1e-15).outside > 1e-3
