"""The input of a linear layer from its gradients, against layers whose input is known."""

import math

import pytest
import torch

from attacks.analytic.linear.rank_one import parallel_units, solve_input


def layer(rng, units=40, features=60):
    x = torch.randn(features, generator=rng, dtype=torch.float64)
    b = torch.randn(units, generator=rng, dtype=torch.float64)
    return x, b[:, None] * x, b


def test_exact_without_noise(rng):
    x, W, b = layer(rng)
    b[3] = W[3] = 0.0
    found = solve_input(W, b)
    torch.testing.assert_close(found.input, x)
    assert found.residual < 1e-14
    assert found.units == 39


def test_torchs_own_gradient_is_the_oracle(rng):
    linear, x = torch.nn.Linear(60, 40), torch.randn(1, 60, generator=rng)
    linear(x).square().sum().backward()
    assert float((solve_input(linear.weight.grad, linear.bias.grad).input - x[0]).abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_noise_is_averaged_and_its_error_foretold(kind, rng):
    """Better than the unit of the largest gradient, which is the attack as published, and as good as it says."""
    x, W, b = layer(rng, units=400, features=200)
    noise = torch.randn(401, 400, generator=rng, dtype=torch.float64).T * 1e-4
    scale = b[:, None].abs() if kind == "relative" else 1.0
    noisy_W, noisy_b = W + noise[:, :200] * scale, b + noise[:, 400] * (scale[:, 0] if kind == "relative" else 1.0)
    found = solve_input(noisy_W, noisy_b)
    largest = int(noisy_b.abs().argmax())
    single = (noisy_W[largest] / noisy_b[largest] - x).square().mean()
    error = float((found.input - x).square().mean())
    assert error < 0.1 * float(single)
    assert 0.3 < error / found.mse < 3.0


def test_one_unit_is_believed_but_says_nothing_of_its_error(rng):
    x, W, b = layer(rng)
    found = solve_input(W[:1], b[:1])
    torch.testing.assert_close(found.input, x)
    assert math.isnan(found.mse)


def test_no_bias_gradient_is_refused():
    with pytest.raises(ValueError, match="no unit"):
        solve_input(torch.ones(2, 3), torch.zeros(2))


def test_parallel_units_are_those_of_a_single_input(rng):
    x = torch.randn(3, 50, generator=rng, dtype=torch.float64)
    deltas = torch.randn(3, 12, generator=rng, dtype=torch.float64)
    deltas[1:, :4] = 0.0  # units 0 to 3 see input 0 alone
    deltas[[[0], [2]], 4:6] = 0.0  # 4 and 5 see input 1 alone; the others are mixtures
    groups = parallel_units(deltas.T @ x, deltas.sum(dim=0), tolerance=1e-6)
    assert [sorted(group.tolist()) for group in groups] == [[0, 1, 2, 3], [4, 5]]
