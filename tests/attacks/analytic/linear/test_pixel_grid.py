"""Rounding to pixel levels: right where the equations prove it, refused elsewhere."""

import numpy as np
import pytest
import torch

from attacks.analytic.linear.least_squares import solve_patches
from attacks.analytic.linear.pixel_grid import EXCESS, MAX_WRONG, _sorted_qr, round_to_grid


def pictures(tokens=24, pixels=12, seed=0):
    levels = torch.randint(0, 256, (tokens, pixels), generator=torch.Generator().manual_seed(seed))
    step = torch.full((pixels,), 1 / (255 * 0.25), dtype=torch.float64)
    offset = torch.full((pixels,), -0.45 / 0.25, dtype=torch.float64)
    return levels * step + offset, step, offset


def ill_conditioned(tokens=24, width=60, decades=4, seed=1):
    G = torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    left, _, right = torch.linalg.svd(G, full_matrices=False)
    return left @ torch.diag(torch.logspace(0, -decades, tokens, dtype=torch.float64)) @ right


def rounded(G, A, step, offset):
    solution = solve_patches(G, A, rcond=0.0, weigh=False)
    grid = round_to_grid(G, A, solution.noise, solution.noise_variance, step, offset, 255)
    return solution, grid


def accepted(grid):
    return grid.excess <= EXCESS and grid.expected_wrong <= MAX_WRONG


def noisy(G, X, size, seed=2):
    A = G.T @ X
    return A + size * torch.randn(A.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_sorted_qr_is_a_qr_decomposition():
    basis = ill_conditioned().T.contiguous()
    Q, R, order = _sorted_qr(basis)
    torch.testing.assert_close(Q @ R, basis[:, order], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(Q.T @ Q, torch.eye(24, dtype=torch.float64), rtol=0, atol=1e-10)
    assert not R.tril(-1).any()
    _, reference = np.linalg.qr(basis[:, order].numpy())
    np.testing.assert_allclose(R.abs().numpy(), np.abs(reference), rtol=1e-6, atol=1e-12)


def test_exact_where_rounding_all_pixels_at_once_fails():
    X, step, offset = pictures(tokens=56)
    G = torch.randn(56, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for size in (1e-6, 1e-3, 4e-3):
        solution, grid = rounded(G, noisy(G, X, size), step, offset)
        assert accepted(grid)
        torch.testing.assert_close(grid.patches, X, rtol=0, atol=1e-12)
        assert 0.2 < grid.excess < 2
    at_once = ((solution.patches - offset) / step).round() * step + offset
    assert not torch.allclose(at_once, X, atol=1e-9), "the last noise must be too much for rounding alone"


def test_too_much_noise_is_refused():
    X, step, offset = pictures()
    G = ill_conditioned()
    _, grid = rounded(G, noisy(G, X, 1e-2), step, offset)
    assert not accepted(grid)


def test_pictures_off_the_grid_are_refused():
    X, step, offset = pictures()
    off = X + step * torch.rand(X.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    G = ill_conditioned()
    _, grid = rounded(G, noisy(G, off, 1e-9), step, offset)
    assert grid.excess > 100 * EXCESS


def test_two_pictures_are_refused():
    first, step, offset = pictures(seed=4)
    second, _, _ = pictures(seed=5)
    G, H = ill_conditioned(seed=6), ill_conditioned(seed=7)
    _, grid = rounded(G + H, G.T @ first + H.T @ second, step, offset)
    assert not accepted(grid)


def test_one_wrong_pixel_would_show():
    X, step, offset = pictures()
    G = ill_conditioned(decades=1)
    A = noisy(G, X, 1e-7)
    solution, grid = rounded(G, A, step, offset)
    assert accepted(grid)
    wrong = X.clone()
    wrong[3, 5] += step[5]
    excess = float((A - G.T @ wrong).square().sum()) / (solution.noise_variance * A.numel())
    assert excess > 100 * EXCESS


@pytest.mark.parametrize("precision", [0.0, 1.2e-7])
def test_what_the_model_saw_is_a_float(precision):
    X, step, offset = pictures()
    G = ill_conditioned(decades=1)
    A = noisy(G, X.float().double(), 1e-12)
    solution = solve_patches(G, A, rcond=0.0, weigh=False)
    grid = round_to_grid(G, A, solution.noise, solution.noise_variance, step, offset, 255, precision)
    assert accepted(grid) == (precision > 0)
