import math

import numpy as np
import pytest
import torch

from attacks.analytic.linear.least_squares import solve_patches


def system(tokens: int, width: int, pixels: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    G = torch.randn(tokens, width, generator=rng, dtype=torch.float64)
    X = torch.randn(tokens, pixels, generator=rng, dtype=torch.float64)
    return G, X, G.T @ X


@pytest.mark.parametrize("equilibrate", [True, False])
@pytest.mark.parametrize("rcond", [None, 0.0, 1e-12])
def test_recovers_the_rows_of_a_consistent_system(rcond, equilibrate):
    G, X, A = system(8, 20)
    G, A = G * torch.logspace(-3, 3, 8, dtype=torch.float64)[:, None], None
    A = G.T @ X
    solution = solve_patches(G, A, rcond, equilibrate)
    torch.testing.assert_close(solution.patches, X, rtol=1e-8, atol=1e-8)
    assert solution.rank == 8
    assert solution.residual < 1e-13


@pytest.mark.parametrize(("tokens", "width"), [(8, 20), (20, 8), (9, 9)])
def test_agrees_with_numpys_least_squares(tokens, width):
    G, _, _ = system(tokens, width)
    A = torch.randn(width, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected, *_ = np.linalg.lstsq(G.T.numpy(), A.numpy(), rcond=None)
    solution = solve_patches(G, A, rcond=0.0, equilibrate=False)
    np.testing.assert_allclose(solution.patches.numpy(), expected, atol=1e-9)
    expected_residual = np.linalg.norm(G.T.numpy() @ expected - A.numpy()) / np.linalg.norm(A.numpy())
    assert solution.residual == pytest.approx(expected_residual, abs=1e-12)


@pytest.mark.parametrize(("equilibrate", "expected"), [(False, (1.0, 2.0)), (True, (2.5, 1.25))])
def test_of_many_solutions_equilibration_takes_the_least_weighed_by_the_gradients(equilibrate, expected):
    G, A = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([[5.0]], dtype=torch.float64)
    weights = G.norm(dim=1) if equilibrate else torch.ones(2, dtype=torch.float64)
    oracle = torch.linalg.pinv((G / weights[:, None]).T) @ A / weights[:, None]
    found = solve_patches(G, A, rcond=0.0, equilibrate=equilibrate, weigh=False).patches
    torch.testing.assert_close(found, oracle)
    torch.testing.assert_close(found.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_equilibration_lowers_the_condition_number():
    G, X, _ = system(8, 20)
    G = G * torch.logspace(-3, 3, 8, dtype=torch.float64)[:, None]
    plain, scaled = solve_patches(G, G.T @ X, equilibrate=False), solve_patches(G, G.T @ X)
    assert scaled.condition < plain.condition / 1e3


def test_cross_validation_drops_what_noise_has_drowned():
    G, X, _ = system(16, 64)
    left, _, right = torch.linalg.svd(G, full_matrices=False)
    G = left @ torch.diag(torch.logspace(0, -8, 16, dtype=torch.float64)) @ right
    noise = torch.randn(64, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    A = G.T @ X + 1e-5 * noise
    chosen, everything = solve_patches(G, A, equilibrate=False), solve_patches(G, A, rcond=0.0, equilibrate=False)
    assert 6 <= chosen.rank <= 12
    assert (chosen.patches - X).norm() < 0.1 * (everything.patches - X).norm()


def test_as_many_tokens_as_the_model_is_wide_are_all_solved_for_where_rounding_alone_is_in_the_way():
    G, X, A = system(9, 9)
    solution = solve_patches(G, A, eps=1e-7)
    assert solution.rank == 9
    torch.testing.assert_close(solution.patches, X)
    left, singular, right = torch.linalg.svd(G)
    G = left @ torch.diag(torch.cat([singular[:8], 1e-9 * singular[:1]])) @ right
    assert solve_patches(G, G.T @ X, equilibrate=False, eps=1e-7).rank < 9


def test_expected_error_is_the_error_that_noise_makes():
    G, X, A = system(16, 64)
    errors, predictions = [], []
    for seed in range(30):
        noise = torch.randn(A.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        solution = solve_patches(G, A + 0.01 * noise, rcond=0.0)
        errors.append(float((solution.patches - X).square().mean()))
        predictions.append(solution.expected_mse)
    assert np.mean(predictions) == pytest.approx(np.mean(errors), rel=0.1)


def test_expected_error_is_unknown_without_spare_equations():
    G, _, A = system(20, 8)
    assert math.isnan(solve_patches(G, A).expected_mse)


def test_a_zero_gradient_gives_rank_zero():
    solution = solve_patches(torch.zeros(4, 8), torch.ones(8, 3))
    assert solution.rank == 0
    assert solution.residual == pytest.approx(1.0)
    assert not solution.patches.any()


def test_float32_is_solved_in_float64():
    G, X, _ = system(8, 20)
    G = G.float()
    solution = solve_patches(G, G.double().T @ X)
    assert solution.patches.dtype == torch.float64
    torch.testing.assert_close(solution.patches, X, rtol=1e-10, atol=1e-10)


def uneven_system(seed=3):
    """Equations whose sizes span two decades, as the columns of a ViT's token gradients do."""
    G, X, _ = system(16, 64)
    G = G * torch.logspace(-1, 1, 64, dtype=torch.float64)
    return G, X, torch.randn(64, X.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_weighing_is_weighted_least_squares_where_rounding_dominates():
    G, X, noise = uneven_system()
    sizes = G.norm(dim=0)
    A = G.T @ X + 1e-6 * sizes[:, None] * noise
    weighed, plain = solve_patches(G, A), solve_patches(G, A, weigh=False)
    expected, *_ = np.linalg.lstsq((G / sizes).T.numpy(), (A / sizes[:, None]).numpy(), rcond=None)
    np.testing.assert_allclose(weighed.patches.numpy(), expected, atol=1e-10)
    assert (weighed.patches - X).norm() < 0.7 * (plain.patches - X).norm()


def test_weighing_changes_nothing_where_all_equations_are_equally_noisy():
    G, X, noise = uneven_system()
    A = G.T @ X + 1e-3 * noise
    assert torch.equal(solve_patches(G, A).patches, solve_patches(G, A, weigh=False).patches)
