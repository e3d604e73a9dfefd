"""Steps along some directions, against a search of their coefficients alone."""

import torch

from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.stages import whole_model
from attacks.optimization.second_order.steps.levenberg_marquardt import LMState, take_step
from attacks.optimization.second_order.steps.subspace import AlongDirections


def test_the_way_is_that_of_the_coefficients_and_ends_within_the_directions(rng):
    A, directions = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((30, 8), (8, 3)))
    middle, truth = torch.randn(2, 8, generator=rng, dtype=torch.float64)
    ones = torch.ones(30, dtype=torch.float64)
    residual = Residual(lambda x: (torch.sin(A.to(x) @ x),), torch.sin(A @ truth), ones, floor=0.0)

    def point(z):
        return middle.to(z) + directions.to(z) @ z

    own = residual.of(point)
    model = whole_model(own, own, 3)
    coefficients, found = LMState(torch.zeros(3, dtype=torch.float64)), LMState(middle)

    def along(x):
        z = torch.linalg.lstsq(directions, (x - middle)[:, None]).solution[:, 0]
        return AlongDirections(model(z), lambda step: directions @ step)

    first = float(residual(middle).square().sum())
    for _ in range(6):
        take_step(coefficients, own, model)
        take_step(found, residual, along)
        assert torch.allclose(found.x, point(coefficients.x), atol=1e-9)
    assert found.damping == coefficients.damping
    assert found.cost < 0.9 * first
