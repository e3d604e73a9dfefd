import pytest

from attacks.optimization.search.schedule import Schedule, check_piecewise, piecewise
from fedsim.errors import ConfigError


def test_steps_fall_at_the_milestones():
    schedule = Schedule("step", milestones=(3 / 8, 5 / 8, 7 / 8))
    factors = [schedule(step, 800) for step in (0, 299, 300, 499, 500, 699, 700, 799)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_cosine_rises_over_the_warmup_and_falls_to_nothing():
    schedule = Schedule("cosine", warmup=10)
    assert [schedule(step, 110) for step in (0, 9, 10, 60)] == pytest.approx([0.1, 1.0, 1.0, 0.5])
    assert schedule(109, 110) < 1e-3


def test_constant_is_one_everywhere():
    assert {Schedule()(step, 7) for step in range(7)} == {1.0}


def test_pieces_begin_at_their_fraction():
    pieces = [[0.0, 4.0], [0.5, 2.0]]
    assert [piecewise(pieces, fraction) for fraction in (0.0, 0.49, 0.5, 1.0)] == [4.0, 4.0, 2.0, 2.0]
    assert piecewise(3, 0.7) == 3.0
    for wrong in ([[0.5, 1.0]], [], [[0.0]], "much", [[0.0, 1], [0.9, 1], [0.5, 1]]):
        with pytest.raises(ConfigError, match="matching_weight"):
            check_piecewise("matching_weight", wrong)


@pytest.mark.parametrize("settings", [{"kind": "linear"}, {"warmup": -1}])
def test_wrong_settings_are_named(settings):
    with pytest.raises(ConfigError, match=f"schedule.{next(iter(settings))}"):
        Schedule(**settings)
