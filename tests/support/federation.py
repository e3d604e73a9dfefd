"""A small federation that runs in this process."""

import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import OmegaConf

from clients.app import build_client_app
from experiments.cli.validation import takes_gradients
from experiments.engine.setup import Setup
from fedsim.determinism import seeded_globals
from fedsim.settings.groups import ObserveSettings
from fedsim.simulation import InlineGrid, partition_of
from fedsim.wire.records import to_arrays
from server.curious.federation_replies import FederationReplies
from server.rounds import Rounds


def settings(name="config", *overrides):
    """`cfg` as a command line would compose it, small and in the process."""
    common = ["simulation=inline", "tracker=[]"]
    if name == "config":
        common += ["num_clients=5", "num_rounds=2", "observe.every=1", "evaluate_every=1"]
    return copy.deepcopy(_composed(name, (*common, *overrides)))


@cache
def _composed(name, overrides):
    with initialize_config_module("conf", version_base=None):
        # Without Hydra's own entry point nothing resolves `now`.
        return OmegaConf.to_container(compose(name, overrides=["run_dir=unused", *overrides]), resolve=True)


def observing(**changes):
    """`cfg.observe`: everybody in every round, less what is changed."""
    return ObserveSettings(**{"every": 1, "clients": "all", "save": True, **changes})


@dataclass
class Federation:
    """Runs a strategy over the configured clients."""

    config: dict[str, Any]
    setup: Setup

    def strategy(self):
        return instantiate(self.config["strategy"], _recursive_=False, _convert_="all")

    def grid(self):
        return InlineGrid(self.config["num_clients"], partial(build_client_app, self.config, self.setup.data))

    def rounds(self, strategy=None, **settings):
        """Around the configured strategy, or around this one."""
        usual = {"whole_weights": not takes_gradients(self.config["strategy"]), "client_of": partition_of}
        settings = {**usual, **settings}
        return Rounds(self.strategy() if strategy is None else strategy, **settings)

    def observed(self, seen, policy=None, *, strategy=None, sums=None, **settings):
        """Rounds whose observations, each with its truth, are added to `seen`."""
        keep = partial(_keep, seen)
        observer = FederationReplies(self.setup.factory(), policy or observing(), keep, sums=sums)
        return self.rounds(strategy, observer=observer, sums=sums, **settings)

    def start(self, rounds, num_rounds=2) -> ArrayRecord:
        """Run them; a strategy of Flower's as Flower runs it."""
        arrays, grid = to_arrays(self.setup.model.state_dict()), self.grid()
        if not isinstance(rounds, Rounds):
            empty = {"train_config": ConfigRecord(), "evaluate_config": ConfigRecord()}
            return rounds.start(grid, arrays, num_rounds=num_rounds, **empty).arrays
        for server_round in range(1, num_rounds + 1):
            arrays = rounds.train(server_round, arrays, grid)
        return arrays


def _keep(seen, observation, truth):
    seen.append((observation, truth))


class Seeded(Strategy):
    """A strategy of Flower's as it is, whose sampling and order alone follow a seed: what `Rounds` is held against."""

    def __init__(self, strategy, seed=0):
        self.strategy, self.seed = strategy, seed

    def configure_train(self, server_round, arrays, config, grid):
        with seeded_globals(self.seed, "sample-train", server_round):
            messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        return sorted(messages, key=lambda message: message.metadata.dst_node_id)

    def aggregate_train(self, server_round, replies):
        ordered = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        return self.strategy.aggregate_train(server_round, ordered)

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self):
        self.strategy.summary()
