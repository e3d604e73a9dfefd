"""`memory_gib` bounds how many directions are pushed forward at once, and what does not fit is tried with half."""

import pytest
import torch

import fedsim
from attacks.forward_mode import CHUNK
from attacks.optimization import GaussNewton
from attacks.optimization.second_order.residual.residual import Residual
from attacks.optimization.second_order.stages import MOST_COLUMNS
from tests.attacks.optimization.second_order.test_attack import WHITE

SETTINGS = {"starts": ["mean"], "restarts": 1, "prior": WHITE, "frames": 0, "steps": 8, "first_order": 5}
WHOLE = Residual.jacobian


@pytest.fixture
def seen():
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh(), torch.nn.Linear(24, 5)
    images = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return fedsim.observe(torch.nn.Sequential(torch.nn.Flatten(), *layers), images, torch.tensor([1]))


@pytest.fixture
def limited(monkeypatch):
    """Directions that were asked for at once; more than the limit do not fit."""

    def limit(most):
        asked = []

        def jacobian(residual, x, together=CHUNK):
            asked.append(together)
            if together > most:
                raise torch.OutOfMemoryError("out of memory")
            return WHOLE(residual, x, together)

        monkeypatch.setattr(Residual, "jacobian", jacobian)
        return asked

    return limit


def test_the_more_memory_the_more_directions_at_once_and_the_same_images(seen, limited):
    asked = limited(MOST_COLUMNS)
    found = []
    for room in (0.002, 0.004, 4.0):
        asked.clear()
        found.append(fedsim.attack(GaussNewton(**SETTINGS, memory_gib=room), seen).images)
        assert len(set(asked)) == 1
        found.append(asked[0])
    assert 1 < found[1] < found[3] < found[5] == MOST_COLUMNS
    assert torch.allclose(found[0], found[4], atol=1e-6)


def test_what_does_not_fit_is_tried_with_half_until_it_does(seen, limited):
    asked = limited(20)
    result = fedsim.attack(GaussNewton(**SETTINGS, memory_gib=0.01), seen)
    assert result.status == "done", result.fault or result.reason
    assert result.reason == "out of memory until memory_gib=0.0025"
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] <= 20 < asked[0]


def test_where_j_never_fits_it_goes_on_by_products(seen, limited):
    limited(0)
    result = fedsim.attack(GaussNewton(**SETTINGS, memory_gib=0.0025), seen)
    assert result.status == "done", result.fault or result.reason
    assert result.reason == "out of memory until memory_gib=0.00125"
    alone = fedsim.attack(GaussNewton(**SETTINGS, memory_gib=0.00125), seen)
    assert torch.equal(result.images, alone.images)
