"""The observer changes no bit, whatever strategy it wraps."""

import pytest
import torch
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from clients.app import ClientRuntime
from fedsim.wire.records import from_arrays, to_arrays
from server.sums.summing import Sums
from tests.support.federation import Seeded, observing

STRATEGIES = [
    "fedsgd",
    "fedavg",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedprox",
    "fedmedian",
    "fedtrimmedavg",
    "krum",
    "multikrum",
    "bulyan",
    "qfedavg",
]

MLP = ("model=mlp", "model.img_size=8", "model.kwargs.hidden=[8]")
VIT = ("+model.kwargs.depth=1",)
FEW = ("data.test_fraction=0.85", "client.batch_size=8")
"""Some 13 pictures a client: two local steps."""


@pytest.mark.parametrize("name", STRATEGIES)
def test_aggregation_is_bit_equal_with_and_without_the_observer(name, federate, same_bits):
    federation = federate(f"strategy={name}", "num_clients=7", *MLP, *FEW)
    start = to_arrays(federation.setup.model.state_dict())
    seen = []
    # Without: Flower's strategy bare, as `flwr` would run it; only its sampling is seeded.
    without = federation.start(Seeded(federation.strategy()))
    with_observer = federation.start(federation.observed(seen, whole_weights=False))
    assert same_bits(without, with_observer)
    assert not same_bits(without, start), "the strategy trained nothing"
    assert len(seen) == 14
    assert all(truth is not None for _, truth in seen)


def test_what_a_strategy_draws_follows_the_seed(federate, same_bits):
    """The noise of Flower's central differential privacy."""
    federation = federate("strategy=fedavg", "num_clients=2", *MLP, *FEW)

    def noisy(seed):
        wrapped = DifferentialPrivacyServerSideFixedClipping(federation.strategy(), 1.0, 1.0, 2)
        return federation.start(federation.rounds(wrapped, seed=seed), num_rounds=1)

    first = noisy(0)
    assert same_bits(first, noisy(0))
    assert not same_bits(first, noisy(1))


def test_observations_hold_what_the_clients_sent(federate):
    federation = federate("strategy=fedavg", "client.optimizer.lr=0.05", *VIT, *FEW)
    seen = []
    federation.start(federation.observed(seen), num_rounds=1)
    assert [observation.client for observation, _ in seen] == [0, 1, 2, 3, 4]
    for observation, truth in seen:
        assert observation.update.kind == "weights"
        assert observation.protocol.lrs == (0.05,) * observation.protocol.steps
        assert len(truth.labels) == observation.update.num_examples
        assert observation.global_state["head.weight"].equal(federation.setup.model.state_dict()["head.weight"])


def test_no_audit_record_reaches_the_inner_strategy(federate):
    federation = federate(*VIT, *FEW)
    inner = federation.strategy()
    contents = []
    aggregate = inner.aggregate_train

    def spy(server_round, replies):
        replies = list(replies)
        contents.extend(set(reply.content) for reply in replies)
        return aggregate(server_round, replies)

    inner.aggregate_train = spy
    federation.start(federation.observed([], strategy=inner), num_rounds=1)
    assert len(contents) == 5
    assert all("fedsim.audit" not in content for content in contents)


@pytest.mark.parametrize(("sums", "keeping"), [(None, {0, 1}), (Sums(clients=2), set(range(5)))])
def test_those_alone_keep_what_their_models_saw_of_whom_something_is_seen(federate, monkeypatch, sums, keeping):
    federation = federate(*VIT, *FEW)
    kept, train = {}, ClientRuntime.train

    def trained(runtime, pictures, client, server_round, mu=0.0, audit=False, *rest, **more):
        kept.setdefault(server_round, set()).update({client} if audit else ())
        return train(runtime, pictures, client, server_round, mu, audit, *rest, **more)

    monkeypatch.setattr(ClientRuntime, "train", trained)
    seen = []
    federation.start(federation.observed(seen, observing(every=3, clients=2), sums=sums), num_rounds=2)
    assert kept == {1: keeping, 2: set()}
    assert len(seen) == 2
    assert all(truth is not None for _, truth in seen)


def test_without_audit_nobody_has_the_truth(federate):
    federation = federate("audit=false", *MLP, *FEW)
    seen = []
    federation.start(federation.observed(seen), num_rounds=1)
    assert len(seen) == 5
    assert all(truth is None for _, truth in seen)


def test_sampling_repeats_with_the_seed_and_changes_with_it(federate):
    federation = federate("num_clients=12", "strategy.fraction_train=0.34", *MLP, *FEW)

    def sampled(seed):
        seen = []
        federation.start(federation.observed(seen, seed=seed))
        return [(observation.server_round, observation.client) for observation, _ in seen]

    first = sampled(1)
    assert first == sampled(1)
    assert first != sampled(2)
    assert len(first) == 8


def test_fedsgd_is_plain_sgd_on_the_mean_gradient(federate):
    federation = federate(
        "client.batch_size=8", "strategy.optimizer._target_=torch.optim.SGD", "strategy.optimizer.lr=0.3"
    )
    seen = []
    final = from_arrays(federation.start(federation.observed(seen), num_rounds=1))
    model, normaliser = federation.setup.model, federation.setup.normaliser
    images = torch.cat([normaliser(truth.images) for _, truth in seen])
    labels = torch.cat([truth.labels for _, truth in seen])
    model.double().train()
    torch.nn.functional.cross_entropy(model(images.double()), labels).backward()
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - 0.3 * parameter.grad
        torch.testing.assert_close(final[name].double(), expected, rtol=1e-4, atol=1e-6)


def test_deltas_average_to_the_same_weights(federate):
    results = {}
    for share in ("weights", "delta"):
        federation = federate("strategy=fedavg", "partition=dirichlet", f"client.share={share}", *VIT, *FEW)
        results[share] = from_arrays(federation.start(federation.rounds()))
    for name, weights in results["weights"].items():
        torch.testing.assert_close(results["delta"][name], weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "krum"])
@pytest.mark.parametrize("defense", ["fixed_pe", "withhold_pe"])
def test_withheld_tensors_keep_their_bits(name, defense, federate):
    federation = federate(f"strategy={name}", f"defense=[{defense}]", *VIT, *FEW)
    start = federation.setup.model.state_dict()
    final = from_arrays(federation.start(federation.rounds()))
    assert set(final) == set(start)
    assert final["pos_embed"].equal(start["pos_embed"])
    assert not final["head.weight"].equal(start["head.weight"])
