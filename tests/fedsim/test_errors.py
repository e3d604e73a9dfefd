"""A refusal is one line that can be read."""

import pickle

from fedsim.errors import LONGEST, ConfigError


def test_a_long_value_is_shortened_in_the_line_alone():
    value = "x" * 10 * LONGEST
    error = ConfigError("attack", value, "a name")
    assert str(error) == f"attack={'x' * LONGEST} …: must be a name"
    assert error.value == value
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(ConfigError("run_dir", "x" * LONGEST, "new")) == f"run_dir={'x' * LONGEST}: must be new"
