"""A federation as small as one can be that has all that travels: parameters, buffers, counts, withheld tensors."""

from functools import cache

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedsim.ground_truth import GroundTruth
from fedsim.models import Architecture, ModelSpec
from fedsim.observation_factory import ObservationFactory
from fedsim.simulation import InlineGrid, node_id_of, partition_of
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import ARRAYS, Contribution, to_arrays, to_reply
from fedsim.wire.reply.checks import ReplyRules
from server.curious.federation_replies import FederationReplies
from server.fedsgd import FedSGD
from server.rounds import Rounds
from server.screening import Screening
from tests.support.federation import observing

CLIENTS, SIDE, PICTURES = 3, 4, 2
DEFENSES = ("fixed_pe", "local_dp")
KINDS = ("gradient", "delta", "weights")
GRID = InlineGrid(CLIENTS, lambda: pytest.fail("no client is asked"))
"""Who the server is, as Flower's messages want to know."""


class Net(nn.Module):
    """A frozen parameter, running statistics, a scalar, a side of 1."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.hidden = nn.Linear(1, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 2)


@cache
def make_net():
    """One for all: nobody writes into it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


@cache
def make_rules(kind):
    known = {"defenses": DEFENSES, "batch_size": PICTURES, "image_shape": (3, SIDE, SIDE), "most_examples": 1000}
    return ReplyRules.of(make_net(), kind, counting=("local_dp",), **known)


def start():
    return to_arrays(make_net().state_dict())


def honest(kind, client, audited=True, wire=True):
    """The content of an honest client's train reply; `wire`: as Flower's own wire brings it."""
    net, rng = make_net(), torch.Generator().manual_seed(client)
    tensors = {name: torch.randn(p.shape, generator=rng) for name, p in net.named_parameters() if p.requires_grad}
    buffers = {name: torch.rand(3, generator=rng) for name in ("norm.running_mean", "norm.running_var")}
    update = Update(tensors, kind, PICTURES, withheld={"frozen": "fixed_pe", "pos_embed": "fixed_pe"}, buffers=buffers)
    local = {"optimizer": "none"} if kind == "gradient" else {"optimizer": "sgd", "steps": 2, "lrs": (0.1, 0.1)}
    pictures = torch.rand(PICTURES, 3, SIDE, SIDE, generator=rng)
    truth = GroundTruth(pictures, torch.tensor([0, 1]), ("cat/1.png", "dog/2.png")) if audited else None
    metrics = {"train_loss": 0.7, "local_dp_epsilon": 1.5}
    content = to_reply(Contribution(update, LocalProtocol(PICTURES, **local), client, metrics=metrics, truth=truth))
    if wire:
        sent = content[ARRAYS]
        content[ARRAYS] = ArrayRecord({n: Array(a.dtype, tuple(a.shape), a.stype, a.data) for n, a in sent.items()})
    return content


def as_reply(content, client):
    return Message(content, reply_to=Message(RecordDict(), node_id_of(client), "train"))


def inner_strategy(kind):
    if kind == "gradient":
        return FedSGD({"_target_": "torch.optim.SGD", "lr": 0.1}, fraction_evaluate=0.0)
    return FedAvg(fraction_evaluate=0.0)


class Server:
    """One round of the server on given replies; `guarded=False`: as it was before replies were checked."""

    def __init__(self, kind, on_observation, guarded=True, inner=None):
        factory = ObservationFactory(Architecture(ModelSpec("mlp", 2)), make_net(), (3, SIDE, SIDE))
        self.rounds = Rounds(
            inner_strategy(kind) if inner is None else inner,
            whole_weights=kind != "gradient",
            screening=Screening(make_rules(kind), partition_of) if guarded else None,
            observer=FederationReplies(factory, observing(), on_observation),
            client_of=partition_of,
        )

    def round(self, replies):
        arrays = start()
        self.rounds.configure(1, arrays, GRID)
        return self.rounds.aggregate(1, arrays, replies), self.rounds.record.metrics

    @property
    def failures(self):
        return {failure["client"]: failure["error"] for failure in self.rounds.record.failures}
