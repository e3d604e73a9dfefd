"""A strategy that is given another's state goes on as the other would have."""

import json
from functools import cache, partial

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedsim.simulation import InlineGrid
from fedsim.storage.nested import flatten, unflatten
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import Contribution, from_arrays, to_arrays, to_reply
from server.fedsgd import FedSGD
from server.resume.strategy_state import restore_strategy, strategy_state
from server.rounds import Rounds

STATE = {
    "weight": torch.linspace(-1, 1, 12).reshape(3, 4),
    "bias": torch.zeros(3),
    "half": torch.ones(2, dtype=torch.float16),
    "count": torch.tensor(4),
}
NAMES = ["fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox", "fedmedian", "krum"]
REMEMBERING = {"fedavgm", "fedadam", "fedyogi", "fedadagrad"}
"""Those whose next round depends on more than the weights."""

OPTIMIZERS = [
    {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"_target_": "torch.optim.AdamW", "lr": 0.1, "amsgrad": True},
    {"_target_": "torch.optim.NAdam", "lr": 0.1},
    {"_target_": "torch.optim.Rprop", "lr": 0.1},
    {"_target_": "torch.optim.Adagrad", "lr": 0.1},
]
LR = "torch.optim.lr_scheduler"
SCHEDULERS = [
    {"_target_": f"{LR}.MultiStepLR", "milestones": [1, 3]},
    {"_target_": f"{LR}.OneCycleLR", "max_lr": 0.5, "total_steps": 10},
    {"_target_": f"{LR}.CyclicLR", "base_lr": 0.01, "max_lr": 0.5, "step_size_up": 2},
    {"_target_": f"{LR}.CosineAnnealingWarmRestarts", "T_0": 2},
]


@cache
def composed(name):
    with initialize_config_module("conf", version_base=None):
        return OmegaConf.to_container(compose("config", overrides=[f"strategy={name}", "run_dir=unused"]).strategy)


def configured(name):
    return instantiate(composed(name), _recursive_=False, _convert_="all")


def drawn(server_round, partition):
    rng = torch.Generator().manual_seed(100 * server_round + partition)
    return {n: torch.randn(t.shape, generator=rng).to(t.dtype) for n, t in STATE.items() if n != "count"}


def sharing_weights():
    app = ClientApp()

    @app.train()
    def train(message, context):
        server_round, partition = message.content["config"]["server-round"], int(context.node_config["partition-id"])
        update = drawn(server_round, partition)
        weights = {n: t + update.get(n, torch.ones_like(t)) for n, t in from_arrays(message.content["arrays"]).items()}
        content = to_reply(
            Contribution(
                Update(weights, "weights", 3 + partition), LocalProtocol(3), partition, metrics={"train_loss": 0.5}
            )
        )
        return Message(content, reply_to=message)

    return app


def sharing_gradients():
    app = ClientApp()

    @app.train()
    def train(message, context):
        server_round, partition = message.content["config"]["server-round"], int(context.node_config["partition-id"])
        update = Update(drawn(server_round, partition), "gradient", 3 + partition)
        return Message(to_reply(Contribution(update, LocalProtocol(3), partition)), reply_to=message)

    return app


def run(rounds, arrays, numbers, client):
    grid = InlineGrid(7, client)
    for server_round in numbers:
        before = rounds.aggregated
        arrays = rounds.train(server_round, arrays, grid)
        assert rounds.aggregated == before + 1
    return arrays


def of_gradients(*settings):
    return Rounds(FedSGD(*settings, fraction_evaluate=0.0), whole_weights=False)


def through_disk(state):
    tree, arrays = flatten(state)
    return unflatten(json.loads(json.dumps(tree)), lambda name: arrays[name].copy())


def bits(arrays):
    return {name: (array.dtype, array.data) for name, array in arrays.items()}


def check(make, client, remembers):
    """Five rounds are two and three, with the state carried over; without it they are not."""
    whole = bits(run(make(), to_arrays(STATE), range(1, 6), client))
    first, resumed, forgetful = make(), make(), make()
    arrays = run(first, to_arrays(STATE), range(1, 3), client)
    kept = through_disk({"arrays": arrays, "rounds": first.state_dict()})
    resumed.load_state_dict(kept["rounds"])
    assert through_disk(resumed.state_dict()).keys() == kept["rounds"].keys()
    assert resumed.aggregated == 2
    assert bits(run(resumed, kept["arrays"], range(3, 6), client)) == whole
    assert (bits(run(forgetful, arrays, range(3, 6), client)) != whole) is remembers


@pytest.mark.parametrize("name", NAMES)
def test_flowers_strategies_go_on_to_the_same_bits(name):
    check(lambda: Rounds(configured(name)), sharing_weights, name in REMEMBERING)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: one["_target_"].rsplit(".", 1)[-1])
def test_every_optimiser_goes_on_to_the_same_bits(optimizer):
    check(lambda: of_gradients(optimizer), sharing_gradients, True)


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda one: one["_target_"].rsplit(".", 1)[-1])
def test_every_scheduler_goes_on_to_the_same_bits(scheduler):
    check(lambda: of_gradients(OPTIMIZERS[0], scheduler), sharing_gradients, True)


def test_a_state_that_was_not_used_yet_is_passed_on():
    first, second = of_gradients(OPTIMIZERS[0]), of_gradients(OPTIMIZERS[0])
    run(first, to_arrays(STATE), [1], sharing_gradients)
    kept = first.state_dict()
    second.load_state_dict(kept)
    assert second.state_dict() == kept


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="a state without aggregated, budget, strategy"):
        of_gradients(OPTIMIZERS[0]).load_state_dict({"0 RoundRecorder": {"aggregated": 1}})


def test_a_strategy_around_another_is_kept_with_it():
    def make():
        return DifferentialPrivacyServerSideAdaptiveClipping(configured("fedavgm"), 0.0, 7)

    found = strategy_state(make())
    assert list(found) == ["0 DifferentialPrivacyServerSideAdaptiveClipping", "1 FedAvgM"]
    assert found["0 DifferentialPrivacyServerSideAdaptiveClipping"]["clipping_norm"] == 0.1


class Hoarding(FedAvg):
    def __init__(self):
        super().__init__(fraction_evaluate=0.0)
        self.history = [object()]


class Telling(Hoarding):
    def state_dict(self):
        return {"length": len(self.history)}

    def load_state_dict(self, state):
        self.history = [object()] * state["length"]


def test_what_nobody_could_bring_back_is_named_unless_the_strategy_tells():
    with pytest.raises(TypeError, match=r"Hoarding.history: 0 is a object; with state_dict and load_state_dict"):
        strategy_state(Hoarding())
    first, second = Telling(), Telling()
    first.history *= 3
    restore_strategy(second, strategy_state(first))
    assert len(second.history) == 3


class Distilling(FedAvg):
    """Its state can be called, and its inner strategy has a name of its own."""

    def __init__(self, **parts):
        super().__init__(fraction_evaluate=0.0)
        vars(self).update(parts)


@pytest.mark.parametrize("part", [{"student": torch.nn.Linear(3, 2)}, {"inner": FedAvg()}])
def test_what_can_be_called_is_no_function(part):
    with pytest.raises(TypeError, match=rf"Distilling\.{next(iter(part))}: .*with state_dict and load_state_dict"):
        strategy_state(Distilling(**part))
    strategy_state(Distilling(function=len, kind=dict, call=partial(max, 3), lost=lambda: None))


def test_the_state_of_another_strategy_is_refused():
    with pytest.raises(ValueError, match="the state is of 0 FedAvg, not of 0 FedAvgM"):
        restore_strategy(configured("fedavgm"), strategy_state(configured("fedavg")))


def test_what_clients_keep_survives_the_disk():
    state = RecordDict({"memory": ArrayRecord({"w": Array(np.float32([1, 2]))}), "n": MetricRecord({"rounds": 2})})
    assert through_disk({5: state}) == {5: state}
