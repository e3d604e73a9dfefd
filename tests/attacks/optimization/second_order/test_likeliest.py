"""Of images that explain an update alike, the likeliest."""

import pytest
import torch

from attacks.optimization.second_order.likeliest import likeliest
from attacks.optimization.second_order.residual import Residual

NUMBERS, UNKNOWNS, ERROR = 400, 6, 1e-4


def linear(A, y):
    return Residual(lambda z: (A.to(z) @ z,), y, torch.ones(len(y), dtype=torch.float64), floor=0.0)


@pytest.fixture
def told(rng):
    """A true image, told up to errors of 1e-4, along one direction by 1e-6 alone."""
    A = torch.randn(NUMBERS, UNKNOWNS, generator=rng, dtype=torch.float64)
    A[:, -1] *= 1e-6
    z = torch.randn(UNKNOWNS, generator=rng, dtype=torch.float64)
    return A, z, A @ z + ERROR * torch.randn(NUMBERS, generator=rng, dtype=torch.float64)


def test_of_a_linear_update_it_is_the_posterior_s_mean(told):
    A, _, y = told
    least_squares = torch.linalg.lstsq(A, y[:, None]).solution[:, 0]
    found, left = likeliest(linear(A, y), least_squares, 4, lambda _: None)
    variance = left / NUMBERS
    oracle = torch.linalg.solve(A.T @ A + variance * torch.eye(UNKNOWNS, dtype=torch.float64), A.T @ y)
    assert torch.allclose(found, oracle, rtol=1e-3, atol=1e-6)
    assert left == pytest.approx(float((A @ found - y).square().sum()))


def test_what_is_hardly_told_stays_within_the_prior(told):
    A, z, y = told
    least_squares = torch.linalg.lstsq(A, y[:, None]).solution[:, 0]
    found, left = likeliest(linear(A, y), least_squares, 4, lambda _: None)
    assert abs(float(least_squares[-1] - z[-1])) > 2.0
    assert abs(float(found[-1])) < 0.5
    assert torch.allclose(found[:-1], z[:-1], atol=10 * ERROR)
    assert left < 1.05 * float((A @ least_squares - y).square().sum())


def test_of_several_rounds_it_is_that_of_all_their_rows(told):
    A, _, y = told
    parts = (linear(A[:150], y[:150]), linear(A[150:], y[150:]))
    both = Residual(
        lambda z: tuple(t for one in parts for t in one.shared(z)), y, torch.ones(NUMBERS).double(), 0.0, rounds=parts
    )
    start = torch.zeros(UNKNOWNS, dtype=torch.float64)
    alone, together = (likeliest(one, start, 4, lambda _: None)[0] for one in (linear(A, y), both))
    assert torch.allclose(alone, together, atol=1e-9)


def test_an_exact_update_gives_its_image(told):
    A, z, _ = told
    costs: list[float] = []
    found, left = likeliest(linear(A, A @ z), torch.zeros_like(z), 4, costs.append)
    assert left < 1e-18
    assert costs[-1] == left
    assert torch.allclose(found[:-1], z[:-1], atol=1e-6)
