"""Under secure aggregation no step of the model is one client's update."""

import pytest
import torch
from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsim.simulation import InlineGrid
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import Contribution, from_arrays, to_arrays, to_reply
from server.aggregation import aggregate, lone_clients
from server.app import ServerPlan, build_rounds
from server.fedsgd import FedSGD
from server.sums.on_workers import ask_for_sums
from server.sums.summing import Sums

STATE = {"weight": torch.tensor([1.0, 2.0]), "frozen": torch.tensor([7.0])}
KINDS = ("gradient", "delta", "weights")
LONELY = [[], ["silent"], ["error"], ["silent", "error"], ["error", "silent", "silent"]]


def app_of(kind, sent):
    """Clients that share `sent` in every entry, or nothing, or fail; each has one example more than the one before."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        partition = int(context.node_config["partition-id"])
        value = sent[partition]
        if value == "error":
            raise RuntimeError("broken")
        tensors = {} if value == "silent" else {"weight": torch.full((2,), abs(value))}
        if value != "silent" and value < 0:
            tensors["frozen"] = torch.tensor([abs(value)])
        update = Update(tensors, kind, 1 + partition)
        metrics = {"withheld": float(value == "silent")}
        return Message(to_reply(Contribution(update, LocalProtocol(1), partition, metrics=metrics)), reply_to=message)

    return app


class Round:
    """One round, with what the strategy said of it and what Flower's strategy was given."""

    def __init__(self, kind, sent, sums=None, group=None):
        few = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
        flowers = FedSGD({"_target_": "torch.optim.SGD", "lr": 0.5}, **few) if kind == "gradient" else FedAvg(**few)
        self.given, original = [], flowers.aggregate_train

        def spy(server_round, replies):
            self.given = list(replies)
            return original(server_round, self.given)

        flowers.aggregate_train = spy
        grid, start = InlineGrid(len(sent), lambda: app_of(kind, sent)), to_arrays(STATE)
        messages = list(flowers.configure_train(1, start, ConfigRecord(), grid))
        if group is not None:
            ask_for_sums(messages, (), group)
        messages.sort(key=lambda message: message.metadata.dst_node_id)  # Flower's order is random
        self.replies = list(grid.send_and_receive(messages))
        before = self._records()
        self.arrays, self.metrics = aggregate(
            flowers, 1, start, self.replies, whole_weights=kind != "gradient", sums=sums
        )
        self.untouched = before == self._records()

    def _records(self):
        return [list(reply.content) for reply in self.replies if not reply.has_error()]

    @property
    def weight(self):
        return None if self.arrays is None else from_arrays(self.arrays)["weight"].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", LONELY, ids="-".join)
@pytest.mark.parametrize("group", [None, 2])
def test_one_client_that_speaks_steps_nothing(kind, others, group):
    sent = [5.0, *others]
    shown = Round(kind, sent, group=group)
    assert shown.weight != STATE["weight"].tolist(), "without the abort the step is the client's update"
    found = Round(kind, sent, Sums(), group)
    assert found.arrays is None
    assert found.given == []
    assert found.untouched
    answered = [(1 + number, value == "silent") for number, value in enumerate(sent) if value != "error"]
    assert found.metrics["withheld"] == pytest.approx(sum(n * s for n, s in answered) / sum(n for n, _ in answered))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [None, 2])
@pytest.mark.parametrize("sent", [[1.0, "silent", 5.0], [1.0, 2.0, 3.0], [1.0, "error", 3.0, "silent"]])
def test_two_that_speak_are_averaged_as_without_it(kind, group, sent):
    found, expected = Round(kind, sent, Sums(), group), Round(kind, sent, group=group)
    assert found.weight == expected.weight
    assert found.weight != STATE["weight"].tolist()
    assert dict(found.metrics) == dict(expected.metrics)


def test_each_group_needs_two_that_speak(caplog):
    """The server knows the other groups' sums: what is left of the model's step would be the one client's update."""
    sent = [1.0, 3.0, "silent", 9.0]
    found = Round("gradient", sent, Sums(clients=2))
    assert found.weight == Round("gradient", sent[:2]).weight
    assert len(found.given) == 2
    assert found.metrics["withheld"] == pytest.approx(3 / 10)
    assert "round 1: secure_aggregation aborts, no other shares the same as client 3" in caplog.text


@pytest.mark.parametrize("kind", ["delta", "weights"])
@pytest.mark.parametrize("worker_sums", [None, 2, 3])
def test_a_tensor_that_one_client_shares_alone_is_no_step(kind, worker_sums, caplog):
    """`frozen` would have moved by the first client's update, with a sum of nobody else in it."""
    sent = [-2.0, 3.0, 4.0]
    assert Round(kind, sent, group=worker_sums).weight != STATE["weight"].tolist()
    assert Round(kind, sent, Sums(), worker_sums).arrays is None
    assert "no other shares the same as client 0, 1, 2" in caplog.text
    assert Round(kind, [-2.0, -3.0, -4.0], Sums(), worker_sums).weight is not None


def test_what_is_in_one_sum_already_is_left_out_as_a_whole():
    assert Round("gradient", [1.0, 3.0, "silent", 9.0], Sums(clients=2), group=2).arrays is None
    assert Round("gradient", [1.0, 3.0, 2.0, 9.0], Sums(clients=2), group=2).weight is not None


def planned_weight(sent, sums, worker_sums):
    few = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    rest = dict.fromkeys(("model", "folder", "trackers", "test", "normalise"))
    plan = ServerPlan(
        strategy=FedAvg(**few),
        resting={},
        shares_gradients=False,
        rules=None,
        num_rounds=1,
        seed=0,
        sums=sums,
        worker_sums=worker_sums,
        **rest,
    )
    grid = InlineGrid(len(sent), lambda: app_of("weights", sent))
    return from_arrays(build_rounds(plan).train(1, to_arrays(STATE), grid))["weight"].tolist()


@pytest.mark.parametrize("worker_sums", [0, "auto", 2])
def test_workers_sums_take_no_other_group_out_of_the_round(worker_sums):
    expected = planned_weight([1.0, 3.0], None, worker_sums)
    assert (
        planned_weight([1.0, 3.0, "silent", 9.0], Sums(clients=2), worker_sums) == expected != STATE["weight"].tolist()
    )


def test_where_all_are_silent_the_model_stays_as_it_was():
    assert Round("delta", ["silent", "silent"], Sums()).weight == STATE["weight"].tolist()


@pytest.mark.parametrize(
    ("speaking", "size", "expected"),
    [
        ({0}, None, {0}),
        ({0, 5}, None, set()),
        (set(), None, set()),
        ({0, 1, 2}, 2, {2}),
        ({0, 1, 4, 5}, 2, set()),
        ({1, 2}, 3, {1, 2} - {1, 2}),
        ({0, 3}, 3, {0, 3}),
    ],
)
def test_groups_are_of_all_that_answered(speaking, size, expected):
    assert lone_clients(range(6), speaking, size) == expected
