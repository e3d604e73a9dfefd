"""BatchNorm's running statistics under FedSGD: averaged beside the gradients, never stepped."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.simulation import InlineGrid
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import Contribution, from_arrays, to_arrays, to_reply
from server.fedsgd import FedSGD

STATE = {
    "bn.weight": torch.ones(2),
    "bn.running_mean": torch.zeros(2),
    "bn.num_batches_tracked": torch.tensor(4),
    "frozen": torch.full((2,), 7.0),
}


def update(gradient, mean, examples):
    buffers = {} if mean is None else {"bn.running_mean": torch.full((2,), mean)}
    return Update({"bn.weight": torch.full((2,), gradient)}, "gradient", examples, buffers=buffers)


@pytest.fixture
def aggregate():
    def call(*updates):
        def client():
            app = ClientApp()

            @app.train()
            def train(message, context):
                sent = updates[int(context.node_config["partition-id"])]
                content = to_reply(Contribution(sent, LocalProtocol(sent.num_examples)))
                return Message(content, reply_to=message)

            return app

        strategy = FedSGD({"_target_": "torch.optim.SGD", "lr": 0.5}, fraction_evaluate=0.0)
        found = strategy.start(
            InlineGrid(len(updates), client),
            to_arrays(STATE),
            num_rounds=1,
            train_config=ConfigRecord(),
            evaluate_config=ConfigRecord(),
        )
        return from_arrays(found.arrays)

    return call


def test_buffers_are_averaged_by_examples_and_gradients_stepped(aggregate):
    found = aggregate(update(1.0, 2.0, 3), update(5.0, 6.0, 1))
    assert found["bn.running_mean"].tolist() == [3.0, 3.0]
    assert found["bn.weight"].tolist() == [0.0, 0.0]
    assert found["frozen"].equal(STATE["frozen"])
    assert found["bn.num_batches_tracked"].equal(STATE["bn.num_batches_tracked"])
    assert list(found) == list(STATE)
    assert all(found[name].dtype == tensor.dtype for name, tensor in STATE.items())


def test_without_buffers_the_state_keeps_its_own(aggregate):
    found = aggregate(update(1.0, None, 3), update(5.0, None, 1))
    assert found["bn.running_mean"].equal(STATE["bn.running_mean"])
    assert found["bn.weight"].tolist() == [0.0, 0.0]


def steps(strategy, state, *gradients):
    """The state after a round of one client with each of the gradients."""
    for gradient in gradients:
        content = to_reply(Contribution(Update(gradient, "gradient", 1), LocalProtocol(1)))
        sent = Message(RecordDict(), dst_node_id=1, message_type="train")
        strategy._state = state
        state = from_arrays(strategy.aggregate_train(1, [Message(content, reply_to=sent)])[0])
    return state


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_tensor_may_be_shared_first_in_a_later_round(name, task):
    one, both = {"bn.weight": torch.ones(2)}, {"bn.weight": torch.ones(2), "frozen": torch.ones(2)}
    optimizer = {"_target_": f"torch.optim.{name}", "lr": 0.5}
    found = steps(FedSGD(optimizer, fraction_evaluate=0.0), STATE, one, both)
    assert torch.allclose(found["frozen"], torch.full((2,), 6.5))
    assert found["bn.running_mean"].equal(STATE["bn.running_mean"])


def test_a_resume_point_of_a_version_that_knew_the_first_rounds_tensors_alone(task):
    one, both = {"bn.weight": torch.ones(2)}, {"bn.weight": torch.ones(2), "frozen": torch.ones(2)}
    scheduler = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1}
    settings = {"_target_": "torch.optim.Adagrad", "lr": 0.5}, scheduler
    whole, first = (FedSGD(*settings, fraction_evaluate=0.0) for _ in range(2))
    state = steps(first, STATE, one)
    kept = first.state_dict()
    kept["parameters"] = ["bn.weight"]
    kept["optimizer"] = {
        "state": {0: kept["optimizer"]["state"][0]},
        "param_groups": [{**kept["optimizer"]["param_groups"][0], "params": [0]}],
    }
    resumed = FedSGD(*settings, fraction_evaluate=0.0)
    resumed.load_state_dict(kept)
    found, expected = steps(resumed, state, both), steps(whole, STATE, one, both)
    assert all(found[name].equal(expected[name]) for name in STATE)
