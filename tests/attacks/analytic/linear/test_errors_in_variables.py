"""Patches behind noise on both sides of the equations."""

import torch

from attacks.analytic.linear.errors_in_variables import NoisyRows, complete_patches
from attacks.analytic.linear.least_squares import solve_patches


def _system(rng, tokens=6, width=40, pixels=9):
    G = torch.randn(tokens, width, generator=rng, dtype=torch.float64)
    X = torch.rand(tokens, pixels, generator=rng, dtype=torch.float64)
    return G, X


def _noisy(G, X, std, rng):
    drawn = [
        std * torch.randn(shape, generator=rng, dtype=torch.float64) for shape in (G.shape, (G.shape[1], X.shape[1]))
    ]
    return G + drawn[0], G.T @ X + drawn[1]


def test_without_noise_it_is_the_exact_solution(rng):
    G, X = _system(rng)
    found = complete_patches(NoisyRows(G, 0.0), G.T @ X, torch.zeros_like(X))
    assert torch.allclose(found.patches, X, atol=1e-9)
    assert found.rank == len(X)


def test_noise_does_not_draw_it_towards_zero_as_least_squares(rng):
    """σ²·width on each squared singular value: with errors of σ = 0.3 in G plain least squares lose a tenth of X."""
    G, X = _system(rng)
    centre = X.mean().expand_as(X)
    ours, plain = [], []
    for _ in range(60):
        noisy, A = _noisy(G, X, 0.3, rng)
        ours.append(complete_patches(NoisyRows(noisy, 0.3), A, centre).patches.mean())
        plain.append(solve_patches(noisy, A, rcond=1e-12, weigh=False).patches.mean())
    shrunk = float(X.mean() - torch.stack(plain).mean())
    assert shrunk > 0.04
    assert abs(float(torch.stack(ours).mean() - X.mean())) < 0.7 * shrunk


def test_noise_alone_leaves_the_centre(rng):
    G, X = _system(rng)
    centre = torch.rand(X.shape, generator=rng, dtype=torch.float64)
    noise = torch.randn(G.shape, generator=rng, dtype=torch.float64)
    found = complete_patches(NoisyRows(noise, 1.05), 0.1 * (G.T @ X), centre)
    assert found.rank == 0
    assert torch.allclose(found.patches, centre)


def test_what_stands_out_of_the_noise_is_solved_and_the_rest_is_the_centre(rng):
    G, X = _system(rng)
    G[3:] *= 1e-3
    noisy, A = _noisy(G, X, 0.05, rng)
    found = complete_patches(NoisyRows(noisy, 0.05), A, X.mean().expand_as(X))
    assert found.rank == 3
    assert float((found.patches[:3] - X[:3]).square().mean()) < 0.3 * float((X - X.mean()).square().mean())


def test_a_token_without_a_gradient_is_the_centre(rng):
    G, X = _system(rng)
    G[2] = 0.0
    found = complete_patches(NoisyRows(G, 1e-6), G.T @ X, torch.full_like(X, 0.25))
    assert torch.allclose(found.patches[2], torch.full_like(X[2], 0.25), atol=1e-6)
