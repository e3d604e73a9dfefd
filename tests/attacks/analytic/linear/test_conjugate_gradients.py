"""Conjugate gradients against a solver of matrices."""

import torch

from attacks.analytic.linear.conjugate_gradients import conjugate_gradients


def test_conjugate_gradients_end_at_the_solution(rng):
    matrix = torch.randn(9, 6, generator=rng, dtype=torch.float64)
    normal, right = matrix.T @ matrix, torch.randn(6, generator=rng, dtype=torch.float64)
    found, left, iterations = conjugate_gradients(lambda v: normal @ v, right, lambda v: v, 1e-10, 50)
    assert torch.allclose(found, torch.linalg.solve(normal, right))
    assert torch.allclose(left, right - normal @ found)
    assert iterations <= 8
    assert conjugate_gradients(lambda v: normal @ v, 0.0 * right, lambda v: v, 1e-10, 50)[2] == 0
