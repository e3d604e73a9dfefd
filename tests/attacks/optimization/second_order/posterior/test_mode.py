"""Of images that explain an update alike, the likeliest."""

import pytest
import torch

from attacks.optimization.second_order.posterior.mode import likeliest
from attacks.optimization.second_order.residual.residual import Residual

NUMBERS, UNKNOWNS, ERROR = 400, 6, 1e-4
MODELLED = 5e-4
"""As `Residual` allows for."""


def linear(A, y, errors=MODELLED):
    ones = torch.ones(len(y), dtype=torch.float64)
    return Residual(lambda z: (A.to(z) @ z,), y, ones, floor=0.0, errors=errors * ones)


def squares(A, z, y):
    return float((A @ z - y).square().sum())


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
    found = likeliest(linear(A, y), least_squares, 4, lambda _: None)
    variance = squares(A, found, y) / (NUMBERS - UNKNOWNS)  # of numbers of one error
    oracle = torch.linalg.solve(A.T @ A + variance * torch.eye(UNKNOWNS, dtype=torch.float64), A.T @ y)
    assert torch.allclose(found, oracle, rtol=1e-3, atol=1e-6)


def test_what_is_hardly_told_stays_within_the_prior(told):
    A, z, y = told
    least_squares = torch.linalg.lstsq(A, y[:, None]).solution[:, 0]
    found = likeliest(linear(A, y), least_squares, 4, lambda _: None)
    assert abs(float(least_squares[-1] - z[-1])) > 2.0
    assert abs(float(found[-1])) < 0.5
    assert torch.allclose(found[:-1], z[:-1], atol=10 * ERROR)
    assert squares(A, found, y) < 1.05 * squares(A, least_squares, y)


def test_of_several_rounds_it_is_that_of_all_their_rows(told):
    A, _, y = told
    parts = (linear(A[:150], y[:150]), linear(A[150:], y[150:]))
    both = Residual(
        lambda z: tuple(t for one in parts for t in one.shared(z)),
        y,
        torch.ones(NUMBERS).double(),
        0.0,
        errors=MODELLED * torch.ones(NUMBERS).double(),
        rounds=parts,
    )
    start = torch.zeros(UNKNOWNS, dtype=torch.float64)
    alone, together = (likeliest(one, start, 4, lambda _: None) for one in (linear(A, y), both))
    assert torch.allclose(alone, together, atol=1e-9)


def test_an_exact_update_gives_its_image(told):
    A, z, _ = told
    costs: list[float] = []
    found = likeliest(linear(A, A @ z, 1e-6), torch.zeros_like(z), 4, costs.append)
    assert costs[-1] < 10.0  # errors of 1e-6
    assert torch.allclose(found[:-1], z[:-1], atol=1e-6)


def test_errors_of_numbers_that_nothing_moves_do_not_loosen_the_others(told, rng):
    """As of key biases, whose gradient is rounding alone: it is a thousand times that of others."""
    A, z, y = told
    idle = torch.cat([A, torch.zeros(40, UNKNOWNS, dtype=torch.float64)])
    noise = 1000 * ERROR * torch.randn(40, generator=rng, dtype=torch.float64)
    errors = MODELLED * torch.cat([torch.ones(NUMBERS), 1000 * torch.ones(40)]).double()
    beside = likeliest(linear(idle, torch.cat([y, noise]), errors), z, 4, lambda _: None)
    assert torch.allclose(beside, likeliest(linear(A, y), z, 4, lambda _: None), atol=0.05 * ERROR, rtol=0.05)


def test_as_many_numbers_as_unknowns_leave_one_rounding_of_doubt(rng):
    """They are met exactly, and the prior still holds what they hardly tell."""
    A = torch.diag(torch.tensor([1.0, 1.0, 1e-6], dtype=torch.float64))
    y = torch.tensor([0.3, -0.4, 3e-4], dtype=torch.float64)
    found = likeliest(linear(A, y, 8e-4), torch.linalg.solve(A, y), 3, lambda _: None)
    assert abs(float(found[2])) < 0.1  # 300 of them meet it
    assert torch.allclose(found[:2], y[:2], atol=1e-6)
