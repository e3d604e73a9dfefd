import pytest
import torch

from attacks.optimization.parametrisation import PatchRowSpace, Pixels
from fedsim.errors import ConfigError, NotApplicable


@pytest.mark.parametrize("init", ["normal", "uniform"])
def test_pixels_start_as_asked_and_again_the_same(small, cpu, rng, init):
    observation, _ = small()
    space = Pixels(init).prepare(observation, 2, cpu)
    start = space.initial(rng)
    assert start.shape == (2, 3, 16, 16)
    assert torch.equal(start, space.initial(torch.Generator().manual_seed(0)))
    unit = observation.to_unit_range(start)
    if init == "uniform":
        assert 0 <= float(unit.min()) < 0.05
        assert 0.95 < float(unit.max()) <= 1


def test_a_scale_without_a_spread_is_refused():
    with pytest.raises(ConfigError, match=r"scale=0\.5: must be 1 with init=uniform"):
        Pixels("uniform", scale=0.5)


def test_a_box_keeps_pixels_in_range(small, cpu):
    observation, _ = small()
    points = torch.linspace(-9, 9, 2 * 3 * 16 * 16).reshape(1, 2, 3, 16, 16)
    free, boxed = points.clone(), points.clone()
    Pixels().prepare(observation, 2, cpu).project(free)
    Pixels(boxed=True).prepare(observation, 2, cpu).project(boxed)
    assert torch.equal(free, points)
    unit = observation.to_unit_range(boxed[0])
    assert float(unit.min()) == pytest.approx(0, abs=1e-6)
    assert float(unit.max()) == pytest.approx(1, abs=1e-6)


def test_the_row_space_holds_the_true_batch(tools, cpu, rng):
    spec = tools.tiny(img_size=16, patch_size=8, dtype="float64", kwargs={"depth": 1})
    pictures = tools.photographs(16)
    observation = tools.observe(spec, pictures, [3, 5])
    space = PatchRowSpace().prepare(observation, 2, cpu)
    start = space.initial(rng)
    assert space.images(start[None]).shape == (1, 2, 3, 16, 16)
    truth = ((pictures - 0.5) / 0.5).unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(2, 4, -1)
    offset = truth.float() - space._base
    inside = offset @ space._factors @ space._factors.T
    assert float((inside - offset).norm() / offset.norm()) < 1e-3


def test_one_picture_has_nothing_free(small, cpu):
    observation, _ = small()
    with pytest.raises(NotApplicable, match="row_space"):
        PatchRowSpace().prepare(observation, 1, cpu)


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="init"):
        Pixels("black")
