"""What a server sees under secure aggregation: sums over clients, never one client's update."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.update import Kind, LocalProtocol, State, Update
from fedsim.wire.records import Contribution

FEWEST = 2
"""A sum over one client is its update."""


@dataclass(frozen=True)
class Sums:
    """How clients are summed before the server sees anything.

    Attributes:
        clients: in one sum, at least; None: all of a round.
        by: name of the defense that does it, for the reasons that attacks give.
    """

    clients: int | None = None
    by: str = "secure_aggregation"

    def check_observed(self, clients: object) -> None:
        """Whose updates are to be kept, `cfg.observe.clients`: no single client's are seen.

        Raises:
            ConfigError: it names single clients.
        """
        if isinstance(clients, list):
            raise ConfigError("observe.clients", clients, f"a number of sums, or all: {self.by} shows no single client")


def in_groups(clients: Iterable[int], size: int | None) -> list[list[int]]:
    """Clients in ascending order, `size` to a group; a rest too small for a group of its own joins the last."""
    ordered = sorted(clients)
    if size is None or len(ordered) < 2 * size:
        return [ordered] if ordered else []
    starts = range(0, len(ordered) - len(ordered) % size, size)
    groups = [ordered[start : start + size] for start in starts]
    return [*groups[:-1], ordered[starts[-1] :]]


class RunningSum:
    """Σ n_i·u_i / Σ n_i over clients with n_i examples, in float64; holds one update however many are added.

    With FedSGD and a model without batch statistics that is the gradient of all clients' batches together, and
    `protocol` is of a client that holds them all. BatchNorm normalises each client's batch by itself: then neither the
    gradient nor the shared statistics are a joint batch's. A client that shares nothing is no part of the sum.
    """

    def __init__(self, by: str = Sums.by) -> None:
        self._by = by
        self._kind: Kind | None = None
        self._tensors: State = {}
        self._buffers: State = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._withheld: dict[str, str] = {}
        self._examples: list[int] = []
        self._protocols: list[LocalProtocol] = []
        self._truths: list[GroundTruth | None] = []
        self._silent: list[Contribution] = []
        self._whose: tuple[int, int] | None = None

    @property
    def clients(self) -> int:
        """How many are in the sum."""
        return len(self._examples)

    def add(self, one: Contribution) -> None:
        """Raises ValueError for an update of another kind, or with other tensors, than those before."""
        update = one.update
        self._whose = self._whose or (one.client, one.server_round)
        self._withheld |= update.withheld
        if not update.tensors:
            self._silent.append(one)
            return
        first = self._kind is None
        same = set(update.tensors) == set(self._tensors) and set(update.buffers) == set(self._buffers)
        if not first and (update.kind != self._kind or not same):
            raise ValueError("clients share different tensors: they have no sum")
        self._kind = update.kind
        for total, shared in ((self._tensors, update.tensors), (self._buffers, update.buffers)):
            for name, tensor in shared.items():
                self._dtypes[name] = tensor.dtype
                part = update.num_examples * tensor.double()
                total[name] = part if first else total[name] + part
        self._examples.append(update.num_examples)
        self._protocols.append(one.protocol)
        self._truths.append(one.truth)

    def result(self) -> Contribution:
        """The weighted mean as one update, with the pictures of all clients in it.

        Where fewer than two clients share anything there is no sum to show: nothing is shared then, and nothing may be
        aggregated (`server.aggregation`).

        Raises:
            ValueError: nothing was added.
        """
        total = sum(self._examples)
        if self.clients < FEWEST or total <= 0:
            return self._nothing()
        assert self._kind is not None
        assert self._whose is not None
        return Contribution(
            Update(
                tensors={name: (t / total).to(self._dtypes[name]) for name, t in self._tensors.items()},
                kind=self._kind,
                num_examples=total,
                withheld={name: by for name, by in self._withheld.items() if name not in self._tensors},
                buffers={name: (t / total).to(self._dtypes[name]) for name, t in self._buffers.items()},
            ),
            joint_protocol(self._protocols, self._examples),
            *self._whose,
            self.clients,
            truth=joint_truth(self._truths),
        )

    def _nothing(self) -> Contribution:
        examples = [*self._examples, *(one.update.num_examples for one in self._silent)]
        protocols = [*self._protocols, *(one.protocol for one in self._silent)]
        truths = [*self._truths, *(one.truth for one in self._silent)]
        if not protocols or self._whose is None:
            raise ValueError("a sum over no clients")
        kind = self._kind or self._silent[0].update.kind
        withheld = {**self._withheld, **dict.fromkeys(self._tensors, self._by)}
        update = Update({}, kind, sum(examples), withheld=withheld)
        return Contribution(update, joint_protocol(protocols, examples), *self._whose, truth=joint_truth(truths))


def joint_protocol(protocols: Sequence[LocalProtocol], examples: Sequence[int]) -> LocalProtocol:
    """One client that takes the batches of all at once.

    Where clients take different numbers of steps, the learning rate of a step is their mean weighted by examples, with
    0 for who has ended: SGD without momentum and FedProx's pull then has the `gradient_scale` of the mean update.
    """
    longest = max(protocols, key=lambda protocol: protocol.steps)
    lrs = longest.lrs
    if any(protocol.lrs != lrs for protocol in protocols):
        steps = range(len(lrs))
        rates = [[p.lrs[step] if step < len(p.lrs) else 0.0 for p in protocols] for step in steps]
        total = sum(examples) or 1
        lrs = tuple(sum(n * lr for n, lr in zip(examples, step, strict=True)) / total for step in rates)
    return replace(longest, batch_size=sum(protocol.batch_size for protocol in protocols), lrs=lrs)


def joint_truth(truths: Sequence[GroundTruth | None]) -> GroundTruth | None:
    """All clients' pictures, one client after the other; None where one of them is unknown."""
    known = [truth for truth in truths if truth is not None]
    if not known or len(known) < len(truths):
        return None
    changed = any(truth.private is not None for truth in known)
    return GroundTruth(
        images=torch.cat([truth.images for truth in known]),
        labels=torch.cat([truth.labels for truth in known]),
        ids=tuple(name for truth in known for name in truth.ids),
        private=torch.cat([truth.originals for truth in known]) if changed else None,
    )
