import pytest
import torch
from scipy.optimize import minimize

from attacks.generative.ball import project_l1


def by_solver(point, radius):
    """Split into positive and negative parts, so that the ball becomes a simplex for a general solver."""
    n = len(point)
    target = point.numpy()

    def distance(parts):
        rest = parts[:n] - parts[n:] - target
        return float(rest @ rest)

    def slope(parts):
        rest = 2 * (parts[:n] - parts[n:] - target)
        return [*rest, *-rest]

    room = {"type": "ineq", "fun": lambda parts: radius - parts.sum(), "jac": lambda parts: [-1.0] * (2 * n)}
    start = [0.0] * (2 * n)
    options = {"maxiter": 500, "ftol": 1e-14}
    found = minimize(distance, start, jac=slope, bounds=[(0, None)] * (2 * n), constraints=[room], options=options)
    return torch.from_numpy(found.x[:n] - found.x[n:])


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
def test_it_is_what_a_general_solver_finds(rng, radius):
    points = torch.randn(4, 7, generator=rng, dtype=torch.float64)
    found = project_l1(points, radius)
    for point, one in zip(points, found, strict=True):
        torch.testing.assert_close(one, by_solver(point, radius), atol=2e-5, rtol=0)
        assert float(one.abs().sum()) <= radius + 1e-12


def test_what_lies_within_keeps_its_bits_and_each_row_its_own_radius(rng):
    points = torch.randn(3, 50, generator=rng)
    radii = points.abs().sum(dim=1) * torch.tensor([2.0, 0.5, 0.0])
    found = project_l1(points, radii)
    assert torch.equal(found[0], points[0])
    assert float(found[1].abs().sum()) == pytest.approx(float(radii[1]), rel=1e-5)
    assert not found[2].any()
