"""The ways of one process of the benchmark, by the engine that it is for."""

import argparse
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import distributed

from experiments.benchmarks.training import own
from experiments.benchmarks.training.turns import Turns
from experiments.benchmarks.training.work import Work, prepared
from experiments.engine.setup import engine
from fedsim.float32 import full_float32
from fedsim.memory.kept import keep_memory, settled
from fedsim.simulation.ray_cluster import quiet_environment
from fedsim.update import State

Way = Callable[[], Callable[[], State]]
"""Trains a round; what it gives reads the model that follows."""

WORKERS = 2


def serve(name: str, address: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Answer until all passes are done. Memory is kept in every process as a run of fedsim keeps it."""
    quiet_environment()
    keep_memory()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with settled(), full_float32():
        if name == "pfl2":
            _pfl_in_two(arguments, address, folder)
            return
        turns = Turns(address, folder)
        if name == "fedsim":
            turns.serve(_one_process(arguments))
        elif name == "ray":
            _on_ray(arguments, turns)
        elif name == "pfl":
            turns.serve(_pfl(arguments))
        else:
            from experiments.benchmarks.training.flower import simulate

            workers = int(name.removeprefix("flower"))
            simulate(arguments, workers, f"Flower's engine, round, workers: {workers}", turns)


def _one_process(arguments: argparse.Namespace) -> dict[str, Way]:
    """The bare loop, and fedsim and Flower's client in its process."""
    from experiments.benchmarks.training.flower import clients

    setup = prepared(arguments)
    work = Work.of(setup)
    round_ = own.federation(setup)
    ways = {
        "bare": _of_clients(work, work.bare),
        "bare again": _of_clients(work, work.bare),
        "fedsim, client": _of_clients(work, own.client(setup)),
        "fedsim, round": lambda: _given(round_()),
    }
    for setting in arguments.also:
        ways[f"fedsim, client, {setting}"] = _of_clients(work, own.client(prepared(arguments, setting)))
    if "flower1" in arguments.engines:
        ways["Flower, NumPyClient.fit"] = _of_clients(work, clients(work))
    return ways


def _on_ray(arguments: argparse.Namespace, turns: Turns) -> None:
    shares = [] if prepared(arguments).config.client.device != "cuda" else [f"simulation.num_gpus={1 / WORKERS}"]
    setup = prepared(arguments, "simulation=ray", f"simulation.workers={WORKERS}", *shares)
    with engine(setup.config, setup.run_config.num_clients, attackers=False):
        round_ = own.federation(setup)
        turns.serve({f"fedsim, round, workers: {WORKERS}": lambda: _given(round_())})


def _pfl(arguments: argparse.Namespace) -> dict[str, Way]:
    from experiments.benchmarks.training.pfl_research import Pfl

    setup = prepared(arguments)
    work = Work.of(setup)
    users, federation = Pfl(Work.of(setup), setup.config.client), Pfl(work, setup.config.client)

    def alone() -> Callable[[], State]:
        users.users()
        return lambda: work.mean(users.ends())

    return {"pfl, client": alone, "pfl, round": lambda: _given(federation.iteration())}


def _pfl_in_two(arguments: argparse.Namespace, address: str, folder: Path) -> None:
    """Processes of torchrun; the first is asked, the others follow."""
    from experiments.benchmarks.training.pfl_research import Pfl

    setup = prepared(arguments)
    federation = Pfl(Work.of(setup), setup.config.client)
    goes_on = torch.ones(())
    if distributed.get_rank():
        while _told(goes_on):
            federation.iteration()
        return

    def together() -> Callable[[], State]:
        distributed.broadcast(goes_on, 0)
        return _given(federation.iteration())

    Turns(address, folder).serve({f"pfl, round, workers: {WORKERS}": together})
    distributed.broadcast(torch.zeros(()), 0)


def _told(goes_on: torch.Tensor) -> bool:
    distributed.broadcast(goes_on, 0)
    return bool(goes_on)


def _of_clients(work: Work, train: Callable[[], Iterable[State]]) -> Way:
    return lambda: partial(work.mean, list(train()))


def _given(model: State) -> Callable[[], State]:
    return lambda: model
