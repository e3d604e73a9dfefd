"""Features that come back from the equations, for labels that are the batch's."""

import pytest
import torch

from attacks.label.head.solver import solve_rows
from attacks.label.head.system import head_system


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_solver_finds_the_features(problem, smoothing):
    weights, h, _, _, gradient = problem(seed=3, classes=10, smoothing=smoothing)
    system = head_system(weights, gradient, 4, 1e-15)
    labels = torch.tensor([[0, 1, 1, 4], [0, 0, 1, 4]])
    solution = solve_rows(system, labels, smoothing, 8, 100, 1e-10, torch.Generator().manual_seed(0))
    assert float(solution.residual[0]) < 1e-9
    assert float(solution.residual[1]) > 1e-2
    found = solution.rows[0] @ system.basis
    nearest = torch.cdist(found, h, compute_mode="donot_use_mm_for_euclid_dist").min(dim=0).values
    assert float(nearest.max()) < 1e-6
