"""The server of a run on Flower's own Grid: what `fedsim` does, with clients that come from elsewhere."""

from dataclasses import replace
from logging import WARNING, getLogger
from pathlib import Path

from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from experiments.cli.call import console
from experiments.engine.setup import Setup
from experiments.flower.grid import NumberedGrid
from experiments.run.command import run_federated
from fedsim.errors import ConfigError
from fedsim.settings.commands import RunConfig
from fedsim.simulation.ray_cluster import quiet_environment


def run_on_flower(config: RunConfig, inner: Grid) -> None:
    """One run, from checked settings to the report.

    Raises:
        ConfigError: a setting cannot work; nothing has been sent to clients then.
        RunError: clients are missing.
    """
    simulated = isinstance(inner, InMemoryGrid)
    if simulated and config.simulation.engine == "ray":
        expected = "inline on Flower's simulation runtime, whose clients hold every CPU of its Ray"
        raise ConfigError("simulation.engine", "ray", expected)
    if config.resume is not None:
        expected = "null: SuperNodes do not have the settings of the earlier run; start it anew in another run_dir"
        raise ConfigError("resume", config.resume, expected)
    config = replace(config, resume_every_seconds=None)  # SuperNodes keep what their clients remember
    if config.simulation.engine == "auto":  # attacks alone are left to this process
        config = replace(config, simulation=replace(config.simulation, engine="inline"))
    quiet_environment()
    getLogger("httpx").setLevel(WARNING)  # it tells of each request

    def make_grid(_: Setup) -> NumberedGrid:
        return NumberedGrid(inner, config.num_clients, config.round_timeout, _say, fixed=simulated)

    run_federated(config, Path(config.run_dir).resolve(), make_grid, simulated)


def _say(text: str) -> None:
    console.print(text, markup=False)
