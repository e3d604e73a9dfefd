"""Federated SGD: clients share gradients, the server steps."""

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch.optim.lr_scheduler import LRScheduler

from fedsim.errors import ConfigError
from fedsim.optimizers import optimizer_factory
from fedsim.records import from_arrays, to_arrays
from fedsim.update import State


class FedSGD(FedAvg):
    """Averages the shared gradients, weighted by examples, and applies any torch optimiser to the weights.

    McMahan et al. 2017, section 2 (FedSGD). The optimiser's state lives on the server. Parameters whose
    gradient nobody shared stay as they are, and so do buffers.

    Args:
        optimizer: Hydra config of a torch optimiser without its parameters.
        scheduler: Hydra config of a torch scheduler, stepped once a round, or None.
        kwargs: those of Flower's FedAvg (`fraction_train` …).
    """

    shares_gradients = True

    def __init__(self, optimizer: dict[str, Any], scheduler: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._make_optimizer = optimizer_factory("strategy", optimizer, scheduler)
        self._optimizer: torch.optim.Optimizer | None = None
        self._scheduler: LRScheduler | None = None
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._state: State = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._state = from_arrays(arrays)
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        self._step(from_arrays(mean))
        stepped = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return to_arrays({**self._state, **stepped}), metrics

    def _step(self, gradient: State) -> None:
        if self._optimizer is None:
            self._parameters = {name: torch.nn.Parameter(self._state[name].clone()) for name in gradient}
            self._optimizer, self._scheduler = self._make_optimizer(list(self._parameters.values()))
        unknown = set(gradient) - set(self._parameters)
        if unknown:
            raise ConfigError("strategy", "fedsgd", f"clients began to share {sorted(unknown)[0]} in mid-run")
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._state[name])
            parameter.grad = gradient[name].to(parameter.dtype) if name in gradient else None
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
