"""Federated SGD: clients share gradients, the server steps."""

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch.optim.lr_scheduler import LRScheduler

from fedsim.errors import ConfigError
from fedsim.settings.local.optimizers import optimizer_factory
from fedsim.update import State
from fedsim.wire.records import buffer_names, from_arrays, to_arrays


class FedSGD(FedAvg):
    """Averages the shared gradients, weighted by examples, and applies any torch optimiser to the weights.

    McMahan et al. 2017, section 2 (FedSGD). The optimiser's state lives on the server. Parameters whose
    gradient nobody shared stay as they are.

    Buffers (BatchNorm's running statistics) come beside the gradients with the values that they had on the client, and
    their mean, weighted by examples, becomes the global model's: the variance between clients is missed, as in FedAvg.
    The count of batches, which only a BatchNorm without momentum reads, does not travel and stays as it is.

    Args:
        optimizer: Hydra config of a torch optimiser without its parameters.
        scheduler: Hydra config of a torch scheduler, stepped once a round, or None.
        kwargs: those of Flower's FedAvg (`fraction_train` …).
    """

    shares_gradients = True
    weighted_mean = True

    def __init__(self, optimizer: dict[str, Any], scheduler: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._make_optimizer = optimizer_factory("strategy", optimizer, scheduler)
        self._optimizer: torch.optim.Optimizer | None = None
        self._scheduler: LRScheduler | None = None
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._state: State = {}
        self._resumed: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """What the optimiser and the scheduler have become; empty before the first step."""
        if self._optimizer is None:
            return self._resumed
        scheduler = {} if self._scheduler is None else self._scheduler.state_dict()
        return {
            "parameters": list(self._parameters),
            "optimizer": self._optimizer.state_dict(),
            # Functions come back with the settings.
            "scheduler": {name: value for name, value in scheduler.items() if not callable(value)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, before the first step."""
        self._resumed = state

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._state = from_arrays(arrays)
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        averaged = from_arrays(mean)
        shared = {name for reply in replies if not reply.has_error() for name in buffer_names(reply.content)}
        buffers = {name: averaged.pop(name).to(self._state[name].dtype) for name in shared}
        self._step(averaged)
        stepped = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return to_arrays({**self._state, **stepped, **buffers}), metrics

    def _step(self, gradient: State) -> None:
        optimizer = self._optimizer or self._start_optimizer()
        if unknown := gradient.keys() - self._parameters.keys():
            raise ConfigError("strategy", "fedsgd", fault=f"clients share {sorted(unknown)[0]}, which the model lacks")
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._state[name])
            parameter.grad = gradient[name].to(parameter.dtype) if name in gradient else None
        optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()

    def _start_optimizer(self) -> torch.optim.Optimizer:
        """Of all that clients may ever share: without a gradient a tensor stays as it is."""
        floating = [name for name, tensor in self._state.items() if tensor.is_floating_point()]
        names = dict.fromkeys([*self._resumed.get("parameters", ()), *floating])  # earlier versions kept some alone
        self._parameters = {name: torch.nn.Parameter(self._state[name].clone()) for name in names}
        parameters = list(self._parameters.values())
        optimizer, self._scheduler = self._make_optimizer(parameters)
        if self._resumed:
            kept, fresh = self._resumed["optimizer"], optimizer.state_dict()
            groups = [
                {**group, "params": new["params"]}
                for group, new in zip(kept["param_groups"], fresh["param_groups"], strict=True)
            ]
            optimizer.load_state_dict({"state": {**fresh["state"], **kept["state"]}, "param_groups": groups})
            # torch gives the optimiser's tensors the type of their parameters: as they were, they have the same bits.
            for index, state in kept["state"].items():
                optimizer.state[parameters[index]] = state
            if self._scheduler is not None:
                self._scheduler.load_state_dict(self._resumed["scheduler"])
            self._resumed = {}
        self._optimizer = optimizer
        return optimizer
