"""Flower's ways: a NumPyClient as its users write one, and its simulation engine with one worker or several."""

import argparse
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.compat.server import ServerAppComponents
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from numpy.typing import NDArray
from torch.nn import functional as F

from experiments.benchmarks.training.turns import Turns
from experiments.benchmarks.training.work import Work, prepared
from fedsim.update import State

Arrays = list[NDArray[Any]]


class PlainClient(NumPyClient):
    """Loads the weights, trains, returns them. Model and data are its process's: a new model each time costs more."""

    def __init__(self, work: Work, number: int) -> None:
        self._work, self._number = work, number

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        model, images, labels = self._work.model, self._work.images[self._number], self._work.labels[self._number]
        state = zip(self._work.start, parameters, strict=True)
        model.load_state_dict({name: torch.from_numpy(np.asarray(array)) for name, array in state})
        optimizer = torch.optim.SGD(model.parameters(), **self._work.sgd)
        for indices in self._work.orders[self._number]:
            optimizer.zero_grad()
            F.cross_entropy(model(images[indices]), labels[indices]).backward()
            optimizer.step()
        return [tensor.detach().numpy().copy() for tensor in model.state_dict().values()], len(labels), {}


def clients(work: Work) -> Callable[[], list[State]]:
    """Each client without an engine; the weights of each."""
    start: Arrays = [tensor.numpy() for tensor in work.start.values()]

    def train() -> list[State]:
        ends = [PlainClient(work, number).fit(start, {})[0] for number in range(len(work.images))]
        return [_state(work, arrays) for arrays in ends]

    return train


def simulate(arguments: argparse.Namespace, workers: int, name: str, turns: Turns) -> None:
    """All passes: the engine has the course of things, and waits between two rounds."""
    work = Work.of(prepared(arguments))

    def between(server_round: int, arrays: Arrays, config: dict[str, Any]) -> None:
        if server_round:
            turns.end(name, lambda: _state(work, arrays))
        turns.begin()

    def server(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=arguments.clients,
            min_available_clients=arguments.clients,
            evaluate_fn=between,
            initial_parameters=ndarrays_to_parameters([tensor.numpy() for tensor in work.start.values()]),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=arguments.passes + 1))

    turns.ready([name])
    run_simulation(
        ServerApp(server_fn=server),
        _App(vars(arguments)),
        arguments.clients,
        backend_config={
            "init_args": {"num_cpus": workers, "logging_level": "error", "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


def _state(work: Work, arrays: Arrays) -> State:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in zip(work.start, arrays, strict=True)}


@lru_cache(maxsize=1)
def _work(model: str, clients: int, batch: int, settings: tuple[str, ...]) -> Work:
    torch.set_num_threads(1)
    return Work.of(prepared(argparse.Namespace(model=model, clients=clients, batch=batch, settings=settings)))


class _App(ClientApp):
    """Small to pickle, as the engine does with every message: model and data are made where it runs, once."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._of = arguments["model"], arguments["clients"], arguments["batch"], tuple(arguments["settings"])
        super().__init__(client_fn=self._client)

    def _client(self, context: Context) -> Client:
        return PlainClient(_work(*self._of), int(context.node_config["partition-id"])).to_client()
