"""What a strategy refuses is told by the setting's own key."""

import pytest
from flwr.serverapp.strategy import FedAvg

from experiments.cli.validation import build_strategy
from fedsim.errors import ConfigError


def test_what_flowers_strategy_refuses_names_key_and_value() -> None:
    settings = {"_target_": "flwr.serverapp.strategy.FedTrimmedAvg", "beta": 0.6}
    with pytest.raises(ConfigError, match=r"^strategy.beta=0.6: `beta` must be in the range \[0, 0.5\)") as refused:
        build_strategy(settings)
    assert refused.value.key == "strategy.beta"
    assert build_strategy({**settings, "beta": 0.2}).beta == 0.2


def test_a_wrapped_strategy_is_built_too() -> None:
    inner = {"_target_": "flwr.serverapp.strategy.FedAvg", "min_train_nodes": 3}
    numbers = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 3}
    fixed = {"_target_": "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping", **numbers}
    built = build_strategy({**fixed, "strategy": inner})
    assert type(built.strategy) is FedAvg
    assert built.strategy.min_train_nodes == 3
    assert built.noise_multiplier == 1.0
    with pytest.raises(ConfigError, match=r"^strategy.beta=0.6"):
        build_strategy({**fixed, "strategy": {"_target_": "flwr.serverapp.strategy.FedTrimmedAvg", "beta": 0.6}})
