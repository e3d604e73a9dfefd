"""What stands between a round's replies and the user's strategy."""

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import Bulyan, FedTrimmedAvg, Krum, MultiKrum

from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import Contribution, from_arrays, to_arrays, to_reply
from server.aggregation import aggregate

CLIENTS = 7
RULES = pytest.mark.parametrize("rule", [Krum, MultiKrum, Bulyan])


def step(rule, start, changes):
    """How far the rule moves each tensor, where each client has changed the weight so."""
    replies = []
    for client, change in enumerate(changes):
        update = Update({"weight": start["weight"] + change}, "weights", 1)
        content = to_reply(Contribution(update, LocalProtocol(1), client, metrics={}))
        replies.append(Message(content, reply_to=Message(RecordDict(), dst_node_id=client + 1, message_type="train")))
    found = from_arrays(aggregate(rule(num_malicious_nodes=1), 1, to_arrays(start), replies)[0])
    assert all(found[name].dtype == tensor.dtype for name, tensor in start.items())
    return {name: found[name].double() - tensor.double() for name, tensor in start.items()}


@RULES
def test_small_changes_of_large_weights_are_told_apart(rule, task):
    rng = torch.Generator().manual_seed(0)
    for odd in range(CLIENTS):
        changes = [1e-5 * torch.randn(10_000, generator=rng) for _ in range(CLIENTS)]
        changes[odd] *= 10
        moved = step(rule, {"weight": torch.full((10_000,), 10.0)}, changes)["weight"]
        assert 0 < moved.norm() < 3 * changes[odd - 1].norm()


@RULES
def test_whole_numbers_and_masks_beside_them_stay(rule, task):
    start = {"weight": torch.ones(3), "count": torch.tensor(3), "mask": torch.tensor([True, False])}
    moved = step(rule, start, [torch.full((3,), 0.5)] * CLIENTS)
    assert moved["weight"].eq(0.5).all()
    assert not moved["count"].any()
    assert not moved["mask"].any()


@pytest.mark.parametrize(
    ("strategy", "enough"),
    [(FedTrimmedAvg(beta=0.2), 5), (Krum(num_malicious_nodes=1), 5), (MultiKrum(num_malicious_nodes=2), 7)],
    ids=lambda value: type(value).__name__,
)
def test_a_round_of_fewer_than_a_robust_rule_needs_is_left_out(strategy, enough, task, caplog):
    """Of four replies 0.2 trims none: one client's 10⁹ would be a quarter of the mean."""
    start = {"weight": torch.zeros(2)}

    def after(answers):
        replies = []
        for client in range(answers):
            update = Update({"weight": torch.full((2,), 1e9 if client == 0 else 1.0)}, "weights", 1)
            content = to_reply(Contribution(update, LocalProtocol(1), client, metrics={}))
            asked = Message(RecordDict(), dst_node_id=client + 1, message_type="train")
            replies.append(Message(content, reply_to=asked))
        replies.append(Message(Error(0, "late"), reply_to=Message(RecordDict(), dst_node_id=99, message_type="train")))
        return aggregate(strategy, 1, to_arrays(start), replies)[0]

    assert float(from_arrays(after(enough))["weight"].max()) == pytest.approx(1.0)
    assert after(enough - 1) is None
    assert "round 1 is left out" in caplog.text
