"""The bound on a linear system's error, against errors that are known."""

import pytest
import torch

from attacks.certificate.linear import LinearSystem, linear_error, own_equations


def system(noise, tokens=6, width=40, pixels=12, seed=0, shrink=1.0):
    """G, A = Gᵀ X + ρ for the true X, another draw of ρ at a solution, and both."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    G, X = draw(tokens, width), draw(tokens, pixels)
    G[-1] = G[-2] + shrink * G[-1]
    A = G.T @ X + noise * draw(width, pixels)
    found = torch.linalg.lstsq(G.T, A).solution
    return G, A, G.T @ found + noise * draw(width, pixels), found, X


@pytest.mark.parametrize("noise", [1e-8, 1e-4, 1e-2])
@pytest.mark.parametrize("shrink", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_and_is_no_more_than_ten_times_the_error(noise, shrink, seed):
    G, A, again, found, truth = system(noise, shrink=shrink, seed=seed)
    bound = linear_error(LinearSystem(G, A), LinearSystem(G, again), found, 0.0)
    error = (found - truth).square().mean(dim=1).sqrt()
    assert bool((bound >= error).all())
    assert float(bound.square().mean().sqrt()) < 10 * float(error.square().mean().sqrt())


def test_a_right_hand_side_that_another_factor_scaled_is_seen():
    G, A, _, _, truth = system(0.0)
    found = 1.7 * truth  # what A, 1.7 times too large, gives
    bound = linear_error(LinearSystem(G, 1.7 * A), LinearSystem(G, 1.7 * (G.T @ found)), found, 1e-7)
    assert float(bound.min()) > 0.5 * float((found - truth).square().mean().sqrt())


def test_no_bound_without_full_rank():
    G, A, again, found, _ = system(0.0)
    G[1] = G[0]
    assert linear_error(LinearSystem(G, A), LinearSystem(G, again), found, 1e-7) is None
    wide = LinearSystem(G.T, A[:6]), LinearSystem(G.T, again[:6])
    assert linear_error(*wide, found[:1].expand(40, 12), 1e-7) is None
    assert own_equations(None, (0.5,)) is None


def test_in_decibels_of_pixels():
    bound = own_equations(torch.tensor([2e-3, 2e-3], dtype=torch.float64), (0.5, 0.5))
    assert bound.psnr == pytest.approx(60.0)


@pytest.mark.parametrize("factor", [0.9991, 1.0009])
@pytest.mark.parametrize("tokens", [1, 6])
def test_a_factor_on_one_of_both_that_leaves_no_residual_is_seen_by_the_update_that_the_result_gives(factor, tokens):
    """G scaled alone: its solution is off by the factor, and satisfies every equation, those to spare too."""
    rng = torch.Generator().manual_seed(0)
    G, truth = (torch.randn(tokens, size, generator=rng, dtype=torch.float64) for size in (40, 12))
    found = truth / factor
    bound = linear_error(LinearSystem(factor * G, G.T @ truth), LinearSystem(G, G.T @ found), found, 1e-7)
    error = (found - truth).square().mean(dim=1).sqrt()
    assert bool((bound >= error).all())
    assert float((bound / error).max()) < 3
