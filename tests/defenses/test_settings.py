import math

import pytest

from defenses.settings import choice, flag, number, whole
from fedsim.errors import ConfigError


def test_values_come_back_in_their_type():
    assert (number("k", 2, "positive", lambda v: v > 0), whole("k", 2, "even", lambda v: v % 2 == 0)) == (2.0, 2)
    assert isinstance(number("k", 2, "positive", lambda v: v > 0), float)
    assert number("k", math.inf, "positive", lambda v: v > 0) == math.inf
    assert choice("k", "a", ("a", "b")) == "a"
    assert flag("k", False) is False


@pytest.mark.parametrize("value", ["ten", True, None, math.nan, [1.0], {}, -1.0])
def test_no_number(value):
    with pytest.raises(ConfigError, match=r"k=.*: must be positive"):
        number("k", value, "positive", lambda v: v > 0)


@pytest.mark.parametrize("value", ["2", 2.0, True, None, 3])
def test_no_whole_number(value):
    with pytest.raises(ConfigError, match=r"k=.*: must be even"):
        whole("k", value, "even", lambda v: v % 2 == 0)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_no_flag(value):
    with pytest.raises(ConfigError, match="true or false"):
        flag("k", value)


@pytest.mark.parametrize("value", ["betta", 1, None, ["alpha"]])
def test_no_choice(value):
    with pytest.raises(ConfigError, match="one of alpha, beta") as refused:
        choice("k", value, ("alpha", "beta"))
    assert ("Did you mean 'beta'?" in str(refused.value)) == (value == "betta")
