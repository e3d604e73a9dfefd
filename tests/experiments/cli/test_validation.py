"""What a strategy refuses is told by the setting's own key."""

import pytest
from flwr.serverapp.strategy import FedAvg

from experiments.cli.validation import (
    all_train,
    build_strategy,
    check_federated,
    check_strategy,
    clients_a_round,
    replies_a_round,
)
from fedsim.errors import ConfigError
from fedsim.settings.commands import RunConfig
from fedsim.settings.schema import parse
from tests.support.federation import settings


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


FIXED = {
    "_target_": "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping",
    "noise_multiplier": 0.0,
    "clipping_norm": 1.0,
    "num_sampled_clients": 5,
}


class LeavesOut(FedAvg):
    """A strategy that wraps another and samples in its own way."""

    def configure_train(self, *_: object) -> list[object]:
        return []


def around(name: str, outer: dict[str, object] = FIXED, **inner: object) -> dict[str, object]:
    """A run's settings with one of Flower's strategies, wrapped."""
    within = {"_target_": f"flwr.serverapp.strategy.{name}", **inner}
    given = settings("config", "strategy=fedavg")
    return {**given, "strategy": {**outer, "strategy": within}}


def test_a_wrapped_strategy_samples_the_clients_of_a_round() -> None:
    half = parse(RunConfig, around("FedAvg", fraction_train=0.5, min_train_nodes=1))
    assert clients_a_round(half) == 2
    assert replies_a_round(half) == 2 + 5  # all evaluate, where a strategy says nothing else
    apart = around("FedAvg", fraction_train=0.5, min_train_nodes=1, fraction_evaluate=0.0)
    assert replies_a_round(parse(RunConfig, apart)) == 2
    assert not all_train(half)
    check_federated(half)
    assert all_train(parse(RunConfig, around("FedAvg")))
    outer = {"_target_": "tests.experiments.cli.test_validation.LeavesOut"}
    assert not all_train(parse(RunConfig, around("FedAvg", outer)))  # what wraps it may leave clients out
    assert all_train(parse(RunConfig, settings("config", "strategy=fedadam")))
    assert all_train(parse(RunConfig, settings("config", "strategy=fedsgd")))
    odd = settings("config", "strategy=fedavg")
    odd["strategy"] = {"_target_": "flwr.serverapp.strategy.FedXgbCyclic"}
    assert not all_train(parse(RunConfig, odd))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (
            "Krum",
            {"num_malicious_nodes": 2},
            r"\.num_malicious_nodes=2: must be f of at least 0 with 2f \+ 3 at most 5",
        ),
        ("Krum", {"num_malicious_nodes": 3}, r"\.num_malicious_nodes=3: must be less than half of num_clients=5"),
        ("FedTrimmedAvg", {"beta": 0.1}, r"\.beta=0\.1: must be 0, or enough to trim one of 5 clients"),
        ("FedAvg", {"weighted_by_key": "loss"}, r"\.weighted_by_key=loss: must be num-examples"),
        ("FedAvg", {"fraction_train": 0.0}, r"\.fraction_train=0: must be a number above 0"),
        (
            "FedAvg",
            {"fraction_train": 0.1, "min_train_nodes": 0},
            r"\.fraction_train=0\.1: must be enough for one of 5",
        ),
        ("FedAvg", {"arrayrecord_key": "weights"}, r"\.arrayrecord_key=weights: must be arrays"),
        ("FedAvg", {"min_train_nodes": -1}, r"\.min_train_nodes=-1: "),
        ("FedAvg", {"fraction": 1.0}, r"\.fraction=1\.0: there is no such setting"),
        ("FedAverage", {}, r"\._target_=flwr\.serverapp\.strategy\.FedAverage: must be"),
    ],
)
def test_what_a_wrapped_strategy_cannot_work_with_is_refused(name: str, given: dict[str, object], said: str) -> None:
    given = {"fraction_train": 1.0, **given}
    with pytest.raises(ConfigError, match=rf"^strategy\.strategy{said}"):
        check_federated(parse(RunConfig, around(name, **given)))


def test_a_wrapped_strategy_waits_for_no_node_that_never_comes() -> None:
    wrapped = build_strategy(around("FedAvg")["strategy"])
    check_strategy(wrapped, 2)
    with pytest.raises(ConfigError, match=r"^strategy\.strategy\.min_available_nodes=2: must be at most num_clients=1"):
        check_strategy(wrapped, 1)


def test_wrapped_averages_of_gradients_are_refused() -> None:
    given = settings("config", "strategy=fedsgd")
    given["client"]["share"] = "weights"
    given["strategy"] = {**FIXED, "strategy": given["strategy"]}
    said = r"^strategy\.strategy\._target_=server\.fedsgd\.FedSGD: must be a strategy that averages weights"
    with pytest.raises(ConfigError, match=said):
        check_federated(parse(RunConfig, given))


@pytest.mark.parametrize("kind", ["Fixed", "Adaptive"])
def test_a_clip_that_no_client_does_is_refused(kind: str) -> None:
    target = f"flwr.serverapp.strategy.DifferentialPrivacyClientSide{kind}Clipping"
    given = around("FedAvg", {**FIXED, "_target_": target})
    with pytest.raises(ConfigError, match=rf"^strategy\._target_={target}: must be .*whose server clips.*dp_sgd"):
        check_federated(parse(RunConfig, given))
