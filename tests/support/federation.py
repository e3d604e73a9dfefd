"""A small federation that runs in this process."""

import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import OmegaConf

from clients.app import build_client_app
from experiments.engine.setup import Setup
from fedsim.simulation import InlineGrid
from fedsim.wire.records import to_arrays


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


@dataclass
class Federation:
    """Runs a strategy over the configured clients."""

    config: dict[str, Any]
    setup: Setup

    def strategy(self):
        return instantiate(self.config["strategy"], _recursive_=False, _convert_="all")

    def grid(self):
        return InlineGrid(self.config["num_clients"], partial(build_client_app, self.config, self.setup.data))

    def start(self, strategy, num_rounds=2) -> ArrayRecord:
        result = strategy.start(
            self.grid(),
            to_arrays(self.setup.model.state_dict()),
            num_rounds=num_rounds,
            train_config=ConfigRecord(),
            evaluate_config=ConfigRecord(),
        )
        return result.arrays
