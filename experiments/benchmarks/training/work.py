"""What every way has to do: the model, the clients' images as the model reads them, and their batches."""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.engine.setup import Setup, prepare
from experiments.python.load_config import load_config
from fedsim.determinism import torch_generator
from fedsim.update import State


def prepared(arguments: argparse.Namespace, *further: str) -> Setup:
    """The settings of the command line, and further ones."""
    common = ["strategy=fedavg", "simulation=inline", "attack=[]", "audit=false", f"num_clients={arguments.clients}"]
    words = [f"model={arguments.model}", f"client.batch_size={arguments.batch}", *arguments.settings]
    return prepare(load_config("run", *common, *words, *further))


def orders(setup: Setup, client: int) -> list[Tensor]:
    """Indices of the client's batches in the first round."""
    from clients.training import batches

    settings, count = setup.config.client, len(setup.data.client(client))
    rng = torch_generator(setup.config.seed, "client", 1, client)
    return list(batches(count, settings.batch_size, settings.local_epochs, settings.local_steps, rng))


@dataclass(frozen=True)
class Work:
    """All of it in memory, on the device of the model, as a loop by hand or a peer would hold it.

    Attributes:
        images: of each client, normalised.
        sgd: settings of torch's optimiser.
    """

    model: nn.Module
    start: State
    images: list[Tensor]
    labels: list[Tensor]
    orders: list[list[Tensor]]
    sgd: dict[str, Any]

    @classmethod
    def of(cls, setup: Setup) -> "Work":
        model = setup.runtime().model.train(setup.config.client.training_mode)
        device = next(model.parameters()).device
        held = [setup.data.client(client) for client in range(setup.run_config.num_clients)]
        return cls(
            model,
            {name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
            [setup.normaliser(images.images(range(len(images)))).to(device) for images in held],
            [images.labels.to(device) for images in held],
            [orders(setup, client) for client in range(len(held))],
            {name: value for name, value in setup.config.client.optimizer.items() if name != "_target_"},
        )

    @property
    def steps(self) -> int:
        """Of all clients in a round."""
        return sum(map(len, self.orders))

    def bare(self) -> list[State]:
        """Train all clients by hand; the weights of each."""
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        weights: list[Tensor] = list(parameters)
        start = [self.start[name] for name in names]
        ends: list[State] = []
        for images, labels, order in zip(self.images, self.labels, self.orders, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(weights, start)
            optimizer = torch.optim.SGD(weights, **self.sgd)
            for indices in order:
                optimizer.zero_grad()
                F.cross_entropy(self.model(images[indices]), labels[indices]).backward()
                optimizer.step()
            ends.append(
                {name: weight.detach().to("cpu", copy=True) for name, weight in zip(names, weights, strict=True)}
            )
        return ends

    def mean(self, ends: list[State]) -> State:
        """FedAvg of the clients' weights."""
        sizes = torch.tensor([len(labels) for labels in self.labels], dtype=torch.float64)
        shares = sizes / sizes.sum()
        each = {name: torch.stack([one[name] for one in ends]) for name in ends[0]}
        return {name: torch.tensordot(shares, all_.double(), dims=1).to(all_) for name, all_ in each.items()}


def same(one: State, other: State, tolerance: float = 0.0) -> bool:
    """Whether no number differs by more than this, or by this share of it."""
    if one.keys() != other.keys():
        return False
    return all(torch.allclose(tensor, other[name], tolerance, tolerance) for name, tensor in one.items())
