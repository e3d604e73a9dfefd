"""Clients whose whole update is withheld leave the round to the others."""

import pytest
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsim.simulation import InlineGrid
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import Contribution, from_arrays, to_arrays, to_reply
from server.fedsgd import FedSGD
from server.rounds import Rounds

STATE = {"weight": torch.tensor([1.0, 2.0]), "frozen": torch.tensor([7.0])}


def update(value, examples, kind):
    return Update({} if value is None else {"weight": torch.full((2,), value)}, kind, examples)


@pytest.fixture
def run():
    """The arrays and metrics of one round, and what Flower's strategy got."""

    def call(kind, *sent):
        got = []

        def client():
            app = ClientApp()

            @app.train()
            def train(message, context):
                value, examples, measured = sent[int(context.node_config["partition-id"])]
                if value == "error":
                    raise RuntimeError("broken")
                content = to_reply(
                    Contribution(update(value, examples, kind), LocalProtocol(1), metrics={"withheld": measured})
                )
                return Message(content, reply_to=message)

            return app

        if kind == "gradient":
            inner = FedSGD({"_target_": "torch.optim.SGD", "lr": 0.5}, fraction_evaluate=0.0)
        else:
            inner = FedAvg(fraction_evaluate=0.0)
        aggregate = inner.aggregate_train

        def spy(server_round, replies):
            replies = list(replies)
            got.extend(replies)
            return aggregate(server_round, replies)

        inner.aggregate_train = spy
        rounds = Rounds(inner, whole_weights=kind != "gradient")
        found = rounds.train(1, to_arrays(STATE), InlineGrid(len(sent), client))
        return from_arrays(found), rounds.record.metrics, got

    return call


@pytest.mark.parametrize("kind", ["gradient", "delta", "weights"])
def test_the_others_are_averaged_as_if_they_were_alone(run, kind):
    alone, _, _ = run(kind, (1.0, 3, 0.0), (5.0, 1, 0.0))
    found, metrics, got = run(kind, (1.0, 3, 0.0), (None, 4, 1.0), (5.0, 1, 0.0))
    assert all(found[name].equal(tensor) for name, tensor in alone.items())
    assert not found["weight"].equal(STATE["weight"])
    assert len(got) == 2
    assert metrics["withheld"] == pytest.approx(4 / 8)


@pytest.mark.parametrize("kind", ["gradient", "delta", "weights"])
@pytest.mark.parametrize("broken", [False, True])
def test_where_all_are_silent_the_model_stays_as_it_was(run, kind, broken):
    sent = [(None, 3, 1.0), (None, 1, 0.5), *([("error", 1, 0.0)] if broken else [])]
    found, metrics, got = run(kind, *sent)
    assert all(found[name].equal(tensor) for name, tensor in STATE.items())
    assert metrics["withheld"] == pytest.approx((3 * 1.0 + 0.5) / 4)
    assert got == []


def test_without_silence_the_strategy_gets_every_reply(run):
    found, metrics, got = run("gradient", (1.0, 3, 0.25), (5.0, 1, 0.5), ("error", 1, 0.0))
    assert found["weight"].tolist() == [0.0, 1.0]
    assert metrics["withheld"] == pytest.approx((3 * 0.25 + 0.5) / 4)
    assert len(got) == 3
