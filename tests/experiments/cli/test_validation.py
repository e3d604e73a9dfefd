"""What a strategy refuses is told by the setting's own key."""

import pytest

from experiments.cli.validation import build_strategy
from fedsim.errors import ConfigError


def test_what_flowers_strategy_refuses_names_key_and_value() -> None:
    settings = {"_target_": "flwr.serverapp.strategy.FedTrimmedAvg", "beta": 0.6}
    with pytest.raises(ConfigError, match=r"^strategy.beta=0.6: `beta` must be in the range \[0, 0.5\)") as refused:
        build_strategy(settings)
    assert refused.value.key == "strategy.beta"
    assert build_strategy({**settings, "beta": 0.2}).beta == 0.2
