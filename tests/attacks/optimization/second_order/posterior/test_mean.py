"""The chain against posteriors that are known in closed form."""

import torch

from attacks.optimization.second_order.posterior.mean import posterior_mean


def test_of_a_linear_observation_it_is_the_known_mean_with_the_known_variance(rng):
    matrix = torch.randn(8, 5, generator=rng, dtype=torch.float64)
    rows = torch.cat([matrix, torch.eye(5, dtype=torch.float64)])
    right = torch.randn(13, generator=rng, dtype=torch.float64)
    covariance = torch.linalg.inv(rows.T @ rows)
    expected = covariance @ rows.T @ right
    found = posterior_mean(
        lambda x: rows @ x - right, torch.zeros(5, dtype=torch.float64), rows.T @ rows, 1500, rng, enough=0.0
    )
    assert float((found.mean - expected).abs().max()) < 0.1 * float(covariance.diagonal().max().sqrt())
    assert torch.allclose(found.variance, covariance.diagonal(), rtol=0.25)
    assert 0.4 < found.accepted <= 1.0
    assert found.draws == 1500


def test_of_a_linear_observation_few_draws_give_the_mean_and_it_stops(rng):
    rows = torch.cat([torch.randn(8, 5, generator=rng, dtype=torch.float64), torch.eye(5, dtype=torch.float64)])
    right = torch.randn(13, generator=rng, dtype=torch.float64)
    expected = torch.linalg.lstsq(rows, right[:, None]).solution[:, 0]
    found = posterior_mean(lambda x: rows @ x - right, torch.zeros(5, dtype=torch.float64), rows.T @ rows, 4000, rng)
    assert found.draws == 40
    assert torch.allclose(found.mean, expected, atol=1e-9)


def test_directions_that_rounding_hides_do_not_end_it(rng):
    direction = torch.randn(192, generator=rng, dtype=torch.float64)
    direction /= direction.norm()
    rows = torch.cat([1e9 * direction[None], 0.05**0.5 * torch.eye(192, dtype=torch.float64)])
    normal = rows.T @ rows - 1.0 * torch.eye(192, dtype=torch.float64)  # as rounding of 1e18 may leave it
    found = posterior_mean(lambda x: rows @ x, torch.zeros(192, dtype=torch.float64), normal, 20, rng)
    assert bool(found.mean.isfinite().all())
    assert bool(found.variance.isfinite().all())


def test_a_chain_that_never_moves_does_not_count_as_settled(rng):
    """Its likeliest image is a spike that every trajectory leaves and none enters."""
    told = []
    eye = torch.eye(2, dtype=torch.float64)
    posterior_mean(lambda x: 1e9 * x, torch.zeros(2, dtype=torch.float64), eye, 60, rng, told.append)
    assert len(told) == 75


def test_of_a_curved_one_it_agrees_with_a_sum_over_a_grid(rng):
    """x² = 1 with errors of 0.5 under a prior around 0.3: two humps, whose mean is at neither."""

    def residual(x):
        return torch.cat([2.0 * (x.square() - 1.0), x - 0.3])

    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    weights = torch.exp(-0.5 * ((2.0 * (grid.square() - 1.0)).square() + (grid - 0.3).square()))
    expected = float((grid * weights).sum() / weights.sum())
    start = torch.ones(1, dtype=torch.float64)
    jacobian = torch.tensor([[2.0], [1.0]], dtype=torch.float64)
    found = posterior_mean(residual, start, jacobian.T @ jacobian, 3000, rng, enough=0.0)
    assert abs(found.mean.item() - expected) < 0.15
    assert expected < 0.5 < float(start)


def test_it_draws_what_it_drew_and_says_which_draw_it_is_at():
    rows, told = torch.eye(3, dtype=torch.float64), []
    runs = [
        posterior_mean(lambda x: rows @ x, torch.ones(3, dtype=torch.float64), rows.T @ rows, 8, _seeded(), told.append)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].mean, runs[1].mean)
    assert told == list(range(10)) * 2


def _seeded():
    return torch.Generator().manual_seed(4)
