"""Sums made where the updates are: the same mean, fewer updates on the way, the same bits everywhere."""

import pytest
import torch
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian

from fedsim.wire.partial_sums import SUM
from fedsim.wire.records import ARRAYS, AUDIT, from_arrays, to_arrays
from server.fedsgd import FedSGD
from server.rounds import WorkerSums
from server.sums.on_workers import group_size, is_weighted_mean
from tests.server.test_strategies import FEW, MLP, VIT
from tests.support.federation import Seeded, observing


class Sparing(ClientApp):
    """Client 1 shares nothing, client 3 no head."""

    def __init__(self, app):
        super().__init__()
        self.app = app

    def __call__(self, message, context):
        reply = self.app(message, context)
        client = context.node_config["partition-id"]
        record = reply.content.array_records[ARRAYS]
        for name in list(record):
            if client == 1 or (client == 3 and name.startswith("head")):
                del record[name]
        return reply


def sums(size, observed=()):
    return WorkerSums(lambda server_round, nodes: [n for n in nodes if n - 2 in observed], size)


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox"])
def test_the_mean_is_that_of_whole_updates(name, federate):
    federation = federate(f"strategy={name}", "num_clients=7", "partition=dirichlet", *MLP, *FEW)
    whole = from_arrays(federation.start(Seeded(federation.strategy()), num_rounds=1))
    start = federation.setup.model.state_dict()
    summed = from_arrays(federation.start(federation.rounds(worker_sums=sums(3)), num_rounds=1))
    moved = 0.0
    for tensor_name, tensor in whole.items():
        change = (tensor - start[tensor_name]).double()
        moved += change.norm().item()
        # Adaptive optimisers divide by √v: where a gradient is nearly zero, rounding decides its sign.
        difference = (summed[tensor_name].double() - tensor.double()).norm()
        assert difference <= 2e-3 * change.norm() + 1e-6 * tensor.double().norm(), tensor_name
    assert moved > 1e-3


def test_neither_who_is_observed_nor_the_observer_changes_a_bit(federate, same_bits):
    federation = federate("strategy=fedavg", "num_clients=8", *VIT, *FEW)
    alone = federation.start(federation.rounds(worker_sums=sums(3)))
    seen, plain = [], []
    policy = observing(clients=[1, 5])
    observed = federation.start(federation.observed(seen, policy, worker_sums=sums(3, {1, 5})))
    assert same_bits(alone, observed)
    assert [observation.client for observation, _ in seen] == [1, 5] * 2
    assert all(truth is not None for _, truth in seen)
    federation.start(federation.observed(plain, policy), num_rounds=1)
    for (left, _), (right, _) in zip(seen, plain, strict=False):
        assert left.update.tensors.keys() == right.update.tensors.keys()
        assert all(left.update.tensors[n].equal(t) for n, t in right.update.tensors.items())


class Fails(ClientApp):
    """At client 0."""

    def __init__(self, app):
        super().__init__()
        self.app = app

    def __call__(self, message, context):
        if context.node_config["partition-id"] == 0:
            raise RuntimeError("broken")
        return self.app(message, context)


@pytest.mark.parametrize("worker_sums", [None, sums(3, {0, 1})])
def test_who_is_observed_is_chosen_among_those_that_are_asked(federate, worker_sums):
    federation, seen = federate("strategy=fedavg", *MLP, *FEW), []
    grid = federation.grid()
    make_app = grid._make_client_app
    grid._make_client_app = lambda: Fails(make_app())
    federation.grid = lambda: grid
    federation.start(federation.observed(seen, observing(clients=2), worker_sums=worker_sums), num_rounds=1)
    assert [observation.client for observation, _ in seen] == [1]


def test_only_observed_updates_travel(federate):
    federation = federate("strategy=fedavg", "num_clients=7", *MLP, *FEW)
    rounds, grid, contents = federation.rounds(worker_sums=sums(3, {4})), federation.grid(), []
    exchange = grid.send_and_receive

    def listen(messages, *, timeout=None):
        replies = sorted(exchange(messages, timeout=timeout), key=lambda reply: reply.metadata.src_node_id)
        contents.extend(set(reply.content) for reply in replies)
        return replies

    grid.send_and_receive = listen
    rounds.train(1, to_arrays(federation.setup.model.state_dict()), grid)
    assert [ARRAYS in content for content in contents] == [False] * 4 + [True] + [False] * 2
    assert sum(SUM in content for content in contents) == 1
    assert not any(AUDIT in content for n, content in enumerate(contents) if n != 4)


def test_clients_that_share_other_tensors_or_nothing_have_sums_of_their_own(federate):
    federation = federate("strategy=fedavg", "partition=dirichlet", "client.share=delta", *VIT, *FEW)
    make_grid = federation.grid

    def make_edited_grid():
        grid = make_grid()
        make_app = grid._make_client_app
        grid._make_client_app = lambda: Sparing(make_app())
        return grid

    federation.grid = make_edited_grid
    results = {}
    for kind in ("whole", "sums"):
        rounds = federation.rounds(worker_sums=WorkerSums(size=2) if kind == "sums" else None)
        results[kind] = from_arrays(federation.start(rounds, num_rounds=1))
    for name, tensor in results["whole"].items():
        torch.testing.assert_close(results["sums"][name], tensor, rtol=1e-5, atol=1e-6)


def test_who_takes_a_weighted_mean():
    class Subclass(FedAvg):
        pass

    class Median(FedSGD):
        pass

    sgd = {"_target_": "torch.optim.SGD", "lr": 0.1}
    assert is_weighted_mean(FedAvg())
    assert is_weighted_mean(FedSGD(sgd))
    assert not is_weighted_mean(Median(sgd)), "what its parent says is not said of it"
    assert not is_weighted_mean(FedMedian())
    assert not is_weighted_mean(Subclass())
    assert not is_weighted_mean(FedAvg(weighted_by_key="train_loss"))


def test_groups_depend_on_the_number_of_clients_alone():
    assert [group_size(n) for n in (1, 16, 31, 32, 100, 1000, 10_000)] == [1, 1, 1, 2, 6, 16, 16]
