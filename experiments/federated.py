"""`fedsim`: a federated run under the eyes of a curious server."""

import time
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from hydra.utils import instantiate

from clients.app import build_client_app
from experiments.cli import console, run_cli
from experiments.logs import log_to
from experiments.progress import Bars
from experiments.scratch import scratch_folder
from experiments.setup import (
    Setup,
    engine,
    make_scheduler,
    make_writer,
    open_folder,
    prepare,
    refuse_used,
    reported,
)
from experiments.validation import check_federated, check_observed, check_strategy, takes_gradients, worker_counts
from fedsim.composition import Config
from fedsim.ground_truth import GroundTruth
from fedsim.observation import Observation, observation_name, save_observation
from fedsim.simulation import InlineGrid, SimulatedGrid, partition_of
from fedsim.tracking import RunFolder, Trackers
from server.app import ServerPlan, build_server_app
from server.observing import ObservePolicy
from server.scheduling import AttackScheduler, RayAttacks

logger = getLogger(__name__)


def main() -> None:
    """Entry point of the console script."""
    run_cli("config", run_federated)


def run_federated(config: Config, root: Path) -> None:
    """One run, from checked settings to the report.

    Raises:
        ConfigError: a setting cannot work; nothing has been started then.
    """
    start = time.perf_counter()
    check_federated(config)
    refuse_used(root)
    strategy = instantiate(config["strategy"], _recursive_=False, _convert_="all")
    check_strategy(strategy, config["num_clients"])
    setup = prepare(config)
    check_observed(config, setup.sums)
    folder = open_folder(config, root)
    trackers = Trackers(config["tracker"], root)
    writer = make_writer(config, folder, trackers)
    with (
        reported(folder, "federated", start),
        log_to(folder.log),
        Bars(console) as bars,
        scratch_folder(folder, bars, resumable=False) as scratch,
        engine(config, config["num_clients"]),
    ):
        scheduler = make_scheduler(config, writer.write, scratch)
        grid = make_grid(setup)
        try:
            _train(setup, strategy, folder, trackers, scheduler, grid, bars)
            grid.close()
            _finish_attacks(setup, scheduler, bars)
        finally:
            grid.close()
            scheduler.close()
            trackers.close()
            writer.finish()


def make_grid(setup: Setup) -> SimulatedGrid:
    """The configured Grid, with a node for each partition."""
    config, simulation = setup.config, setup.config["simulation"]
    if simulation["engine"] == "inline":
        make_app = partial(build_client_app, config, setup.data)
        return InlineGrid(config["num_clients"], make_app, simulation["threads"])
    from fedsim.simulation.on_ray import RayGrid

    return RayGrid(
        config["num_clients"],
        partial(build_client_app, config),
        workers=worker_counts(config, config["num_clients"])[0],
        threads=simulation["threads"],
        num_cpus=simulation["num_cpus"],
        num_gpus=simulation["num_gpus"],
        max_retries=simulation["max_retries"],
    )


def _train(
    setup: Setup,
    strategy: Any,
    folder: RunFolder,
    trackers: Trackers,
    scheduler: AttackScheduler,
    grid: SimulatedGrid,
    bars: Bars,
) -> None:
    config = setup.config
    rounds, clients = config["num_rounds"], config["num_clients"]
    policy = ObservePolicy(**config["observe"])
    replies = {"round": 0}

    def on_reply(_: object) -> None:
        replies["round"] += 1
        bars.set("clients", replies["round"], clients)

    def on_round(server_round: int, metrics: dict[str, Any]) -> None:
        replies["round"] = 0
        scheduler.collect()
        note = f"accuracy {metrics['accuracy']:.1%}" if "accuracy" in metrics else None
        bars.set("rounds", server_round, rounds, note)
        bars.set("attacks", scheduler.finished, scheduler.submitted)
        if note is not None:
            bars.say(f"round {server_round}/{rounds}  {note}  attacks {scheduler.finished}/{scheduler.submitted}")
        for failure in metrics["failures"]:
            bars.say(f"round {server_round}: client {failure['client']} failed: {failure['error']}")

    def on_observation(observation: Observation, truth: GroundTruth | None) -> None:
        if policy.save:
            _save(observation, folder)
        scheduler.submit(observation, truth)

    grid.on_reply = on_reply
    plan = ServerPlan(
        model=setup.model,
        strategy=strategy,
        shares_gradients=takes_gradients(config),
        num_rounds=rounds,
        seed=config["seed"],
        folder=folder,
        trackers=trackers,
        test=setup.data.test,
        normalise=setup.normaliser,
        evaluate_every=config["evaluate_every"],
        round_timeout=config["round_timeout"],
        checkpoint_every=config["checkpoint_every"],
        observe=policy if config["attack"] or policy.save else None,
        sums=setup.sums,
        factory=setup.factory(),
        on_observation=on_observation,
        auxiliary=setup.data.auxiliary if setup.wants_auxiliary else None,
        training_mode=config["client"]["training_mode"],
        on_round=on_round,
        client_of=partition_of,
    )
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    build_server_app(plan)(grid, context)


def _save(observation: Observation, folder: RunFolder) -> None:
    """A full disk costs the copy of the observation, not the training and not the attack in memory."""
    name = observation_name(observation.server_round, observation.client)
    try:
        save_observation(observation, folder.observations / name)
    except OSError as error:
        logger.error("observation %s could not be saved: %s", name, error)
        console.print(f"observation {name} could not be saved: {error.strerror}", markup=False)


def _finish_attacks(setup: Setup, scheduler: AttackScheduler, bars: Bars) -> None:
    """Wait for the attacks; the cores that the clients have left help."""
    if isinstance(scheduler, RayAttacks) and scheduler.pending > 2:
        free = worker_counts(setup.config, setup.config["num_clients"])[0]
        scheduler.add_workers(min(free, scheduler.pending // 2))
    scheduler.drain(lambda: bars.set("attacks", scheduler.finished, scheduler.submitted))
    bars.say(f"attacks {scheduler.finished}/{scheduler.submitted}")


if __name__ == "__main__":
    main()
