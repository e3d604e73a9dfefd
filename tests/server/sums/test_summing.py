"""The server under secure aggregation: sums, and nothing of a single client."""

import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.ground_truth import GroundTruth
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import Contribution, from_arrays
from server.sums.summing import RunningSum, Sums, in_groups, joint_protocol
from tests.support.federation import observing


def contribution(seed, examples, kind="gradient", lrs=(), withheld=None, silent=False):
    rng = torch.Generator().manual_seed(seed)
    tensors = {"weight": torch.randn(4, 3, generator=rng), "bias": torch.randn(3, generator=rng).double()}
    truth = GroundTruth(
        torch.rand(examples, 3, 2, 2, generator=rng),
        torch.arange(examples),
        tuple(f"{seed}/{i}" for i in range(examples)),
    )
    buffers = {} if silent else {"mean": torch.randn(3, generator=rng)}
    protocol = LocalProtocol(examples, steps=max(1, len(lrs)), optimizer="sgd" if lrs else "none", lrs=lrs)
    update = Update({} if silent else tensors, kind, examples, withheld=withheld or {}, buffers=buffers)
    return Contribution(update, protocol, truth=truth)


def summed(*parts):
    total = RunningSum("secure_aggregation")
    for part in parts:
        total.add(part)
    return total.result()


@pytest.mark.parametrize(
    ("clients", "size", "expected"),
    [
        ([3, 1, 2], None, [[1, 2, 3]]),
        (range(6), 2, [[0, 1], [2, 3], [4, 5]]),
        (range(7), 3, [[0, 1, 2], [3, 4, 5, 6]]),
        ([9, 4, 7], 2, [[4, 7, 9]]),
        (range(3), 4, [[0, 1, 2]]),
        (range(3), 1, [[0], [1], [2]]),
        ([], None, []),
        ([], 2, []),
    ],
)
def test_groups_are_of_at_least_the_size_where_there_are_enough(clients, size, expected):
    assert in_groups(clients, size) == expected


def test_the_sum_is_the_mean_weighted_by_examples():
    parts = [contribution(seed, examples) for seed, examples in ((1, 3), (2, 1), (3, 4))]
    found = summed(*parts)
    for name in ("weight", "bias"):
        slow = torch.zeros_like(parts[0].update.tensors[name], dtype=torch.float64)
        for part in parts:
            for _ in range(part.update.num_examples):
                slow += part.update.tensors[name].double() / 8
        assert found.update.tensors[name].dtype == parts[0].update.tensors[name].dtype
        torch.testing.assert_close(found.update.tensors[name].double(), slow, rtol=1e-6, atol=1e-7)
    mean = sum(part.update.num_examples * part.update.buffers["mean"] for part in parts) / 8
    torch.testing.assert_close(found.update.buffers["mean"], mean)
    assert (found.update.kind, found.update.num_examples, found.protocol.batch_size) == ("gradient", 8, 8)
    assert found.truth.ids == ("1/0", "1/1", "1/2", "2/0", "3/0", "3/1", "3/2", "3/3")
    assert found.truth.images.equal(torch.cat([part.truth.images for part in parts]))
    assert found.truth.labels.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert found.truth.private is None


def test_private_pictures_stand_beside_those_that_the_models_saw():
    first, second = contribution(1, 2), contribution(2, 1)
    changed = GroundTruth(first.truth.images, first.truth.labels, first.truth.ids, 1 - first.truth.images)
    found = summed(Contribution(first.update, first.protocol, truth=changed), second)
    assert found.truth.originals.equal(torch.cat([1 - first.truth.images, second.truth.images]))
    assert summed(Contribution(first.update, first.protocol), second).truth is None


def test_who_shares_nothing_is_not_in_the_sum():
    speaking = [contribution(1, 3), contribution(2, 1)]
    found = summed(
        speaking[0], contribution(5, 2, silent=True, withheld={"weight": "gate", "bias": "gate"}), speaking[1]
    )
    alone = summed(*speaking)
    assert all(found.update.tensors[name].equal(tensor) for name, tensor in alone.update.tensors.items())
    assert (found.update.num_examples, found.protocol.batch_size) == (4, 4)
    assert found.truth.ids == alone.truth.ids
    assert found.update.withheld == {}


@pytest.mark.parametrize("others", [0, 1])
def test_one_client_alone_is_no_sum(others):
    silent = [contribution(5, 2, silent=True, withheld={"gone": "gate"})] * others
    found = summed(contribution(1, 3), *silent)
    assert found.update.tensors == {}
    assert found.update.buffers == {}
    assert found.update.withheld == {
        "weight": "secure_aggregation",
        "bias": "secure_aggregation",
        **({"gone": "gate"} if others else {}),
    }
    assert found.update.num_examples == 3 + 2 * others


def test_nobody_shares_anything():
    silent = {"weight": "gate"}
    found = summed(contribution(1, 3, silent=True, withheld=silent), contribution(2, 1, silent=True, withheld=silent))
    assert (found.update.tensors, found.update.withheld) == ({}, silent)
    assert len(found.truth.ids) == 4
    with pytest.raises(ValueError, match="no clients"):
        summed()


def test_different_tensors_have_no_sum():
    with pytest.raises(ValueError, match="different tensors"):
        summed(contribution(1, 3), contribution(2, 3, kind="delta"))
    less = contribution(2, 3)
    del less.update.tensors["bias"]
    with pytest.raises(ValueError, match="different tensors"):
        summed(contribution(1, 3), less)


def test_the_joint_protocol_scales_the_mean_update():
    examples, rates = (3, 1), ((0.1, 0.05, 0.025), (0.1,))
    protocols = [contribution(1, n, "delta", lrs).protocol for n, lrs in zip(examples, rates, strict=True)]
    joint = joint_protocol(protocols, examples)
    scales = [protocol.gradient_scale() for protocol in protocols]
    assert joint.gradient_scale() == pytest.approx((3 * scales[0] + scales[1]) / 4)
    assert (joint.steps, joint.batch_size) == (3, 4)
    # Equal rates keep their bits.
    assert joint_protocol([protocols[0]] * 3, (1, 1, 1)).lrs == rates[0]


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "fedadam"])
def test_aggregation_is_bit_equal_and_no_single_update_is_observed(name, federate, same_bits):
    federation = federate(f"strategy={name}", "num_clients=5", "client.batch_size=16", "client.local_steps=1")
    single, sums = [], []
    without = federation.start(federation.observed(single), 1)
    assert same_bits(without, federation.start(federation.observed(sums, sums=Sums(clients=2)), 1))
    assert [observation.client for observation, _ in sums] == [0, 2]
    groups = [single[:2], single[2:]]
    for (observation, truth), group in zip(sums, groups, strict=True):
        assert truth.ids == tuple(name for _, one in group for name in one.ids)
        total = sum(one.update.num_examples for one, _ in group)
        assert observation.update.num_examples == total
        for tensor, shared in observation.update.tensors.items():
            mean = sum(one.update.num_examples * one.update.tensors[tensor].double() for one, _ in group) / total
            torch.testing.assert_close(shared.double(), mean, rtol=1e-5, atol=1e-7)
            if bool(shared.any()) and not tensor.startswith("norm"):
                assert not any(shared.equal(one.update.tensors[tensor]) for one, _ in single)


def test_the_sum_of_a_round_is_the_gradient_of_all_pictures_together(federate):
    federation = federate("strategy=fedsgd", "client.batch_size=4", "model.dtype=float64")
    seen = []
    federation.start(federation.observed(seen, sums=Sums()), num_rounds=1)
    ((observation, truth),) = seen
    model = federation.setup.model.train()
    scores = model(federation.setup.normaliser(truth.images))
    torch.nn.functional.cross_entropy(scores, truth.labels).backward()
    assert observation.protocol.batch_size == observation.update.num_examples == len(truth.ids) == 20
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(observation.gradient[name], parameter.grad, rtol=1e-9, atol=1e-12)


def test_a_number_of_sums_is_observed_and_single_clients_are_refused(federate):
    federation = federate("num_clients=6")
    seen = []
    federation.start(federation.observed(seen, observing(clients=2), sums=Sums(clients=2)), num_rounds=1)
    assert [observation.client for observation, _ in seen] == [0, 2]
    with pytest.raises(
        ConfigError, match=r"observe\.clients=\[3\]: must be a number of sums, or all: .* no single client"
    ):
        federation.observed([], observing(clients=[3]), sums=Sums(clients=2))


@pytest.mark.parametrize("strategy", ["fedsgd", "fedavg"])
def test_a_round_with_one_reply_shows_nothing_and_steps_nothing(strategy, federate):
    """The step would be the update: the server has the model before and after."""
    federation = federate(f"strategy={strategy}", "num_clients=4", "strategy.fraction_train=0.25")
    seen = []
    rounds = federation.observed(seen, sums=Sums())
    final = federation.start(rounds, num_rounds=1)
    ((observation, truth),) = seen
    assert observation.update.tensors == {}
    assert set(observation.update.withheld.values()) == {"secure_aggregation"}
    assert truth is not None
    assert rounds.aggregated == 0
    start = federation.setup.model.state_dict()
    assert all(tensor.equal(start[name]) for name, tensor in from_arrays(final).items())
