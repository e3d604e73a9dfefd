"""An app that knows nothing of fedsim runs as before, and what its clients sent is kept."""

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedsim.settings.composition import finetune_of
from fedsim.simulation import InlineGrid
from fedsim.update import LocalProtocol
from fedsim.wire.records import from_arrays, to_arrays
from server.curious.honest_but_curious import HonestButCurious

LR = 0.1
PROTOCOL = LocalProtocol(batch_size=2, steps=1, optimizer="sgd", lrs=(LR,))


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


def batch(client):
    rng = torch.Generator().manual_seed(client)
    return torch.rand(2, 1, 4, 4, generator=rng), torch.tensor([0, 1])


def archive():
    file = io.BytesIO()
    np.savez(file, bias=np.zeros(3, np.float32))
    return file.getvalue()


def make_app(drop=(), examples=2, spoil=None, data=None):
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        model = make_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = batch(client)
        nn.functional.cross_entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=LR).step()
        state = {name: tensor for name, tensor in model.state_dict().items() if not (client == 0 and name in drop)}
        if spoil is not None and client == 0:
            state[spoil] = state[spoil].repeat(2)
        metrics = MetricRecord({"num-examples": examples if client == 0 else 2})
        arrays = ArrayRecord(state)
        if data is not None and client == 0:
            arrays["0.bias"] = Array("float32", (3,), "numpy.ndarray", data)
        content = {"arrays": arrays, "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def start(strategy, rounds=2, **settings):
    grid = InlineGrid(2, lambda: make_app(**settings))
    return strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=rounds).arrays


def averaging():
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)


def test_the_app_runs_to_the_same_bits():
    torch.manual_seed(0)
    plain, watched = start(averaging()), start(HonestButCurious(averaging(), make_model(), PROTOCOL, (1, 4, 4), 2))
    left, right = from_arrays(plain), from_arrays(watched)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_what_is_kept_amounts_to_the_clients_gradients():
    curious = HonestButCurious(averaging(), make_model(), PROTOCOL, (1, 4, 4), 2)
    start(curious, rounds=1)
    assert [(one.server_round, one.client) for one in curious.observations] == [(1, 0), (1, 1)]
    for observation in curious.observations:
        model = observation.build_model()
        x, y = batch(observation.client)
        nn.functional.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(observation.gradient[name], parameter.grad.double(), atol=1e-5, rtol=1e-3)
        assert set(observation.update.buffers) == {"1.running_mean", "1.running_var"}


def test_the_module_of_the_app_is_left_alone():
    model = make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    curious = HonestButCurious(averaging(), model, PROTOCOL, (1, 4, 4), 2)
    start(curious, rounds=1)
    assert curious.observations[0].build_model() is not curious.observations[0].build_model()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_reply_that_cannot_be_read_is_left_to_the_strategy(caplog):
    curious = HonestButCurious(averaging(), make_model(), PROTOCOL, (1, 4, 4), 2)
    with pytest.raises(InconsistentMessageReplies):  # what FedAvg makes of it without an eavesdropper as well
        start(curious, rounds=1, drop=("0.bias",))
    assert len(curious.observations) == 1
    assert "no 0.bias in the reply" in caplog.text


def test_a_node_keeps_its_number_whoever_else_answers(task):
    curious = HonestButCurious(averaging(), make_model(), PROTOCOL, (1, 4, 4), 2)
    arrays = ArrayRecord(make_model().state_dict())
    for server_round, nodes in ((1, (1, 2)), (2, (3, 2))):
        sent = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 2})}
        curious.observe(server_round, arrays, [Message(RecordDict(content), reply_to=one) for one in sent])
    assert [(one.server_round, one.client) for one in curious.observations] == [(1, 0), (1, 1), (2, 1), (2, 2)]


def header(text):
    """The beginning of an .npy file, with nothing behind it."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


class Taking(FedAvg):
    """Takes whatever comes, and gives the model back as it was sent."""

    def configure_train(self, server_round, arrays, config, grid):
        self.arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        self.replies = list(replies)
        return self.arrays, MetricRecord({})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"examples": float("inf")}, "infinity"),
        ({"examples": float("nan")}, "NaN"),
        ({"spoil": "0.bias"}, "0.bias of another shape"),
        ({"data": b""}, "no plain array"),
        ({"data": b"PK\x03\x04"}, "no plain array"),
        ({"data": archive()}, "no plain array: NpzFile"),
        ({"data": header("(((")}, "no plain array"),
        ({"data": header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }")}, "no plain arra"),
    ],
)
def test_numbers_and_shapes_that_cannot_be_cost_the_observation_alone(settings, words, caplog):
    inner = Taking(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    curious = HonestButCurious(inner, make_model(), PROTOCOL, (1, 4, 4), 2)
    start(curious, rounds=1, **settings)
    assert len(inner.replies) == 2
    assert [one.client for one in curious.observations] == [1]
    assert words in caplog.text


def test_an_app_that_sends_low_rank_factors_alone(task):
    """As apps do whose backbone comes from a hub: neither instructions nor replies hold it."""
    recipe = {"lora": {"rank": 2, "targets": ["3"], "head": False}}
    prepared = finetune_of(recipe).prepare(make_model())
    factors = [name for name, parameter in prepared.named_parameters() if parameter.requires_grad]
    arrays = to_arrays({name: prepared.state_dict()[name] + 0.5 for name in factors})
    curious = HonestButCurious(averaging(), make_model(), PROTOCOL, (1, 4, 4), 2, finetune=recipe)
    sent = Message(RecordDict({"arrays": arrays}), dst_node_id=1, message_type="train")
    content = {"arrays": to_arrays(from_arrays(arrays)), "metrics": MetricRecord({"num-examples": 2})}
    curious.observe(1, arrays, [Message(RecordDict(content), reply_to=sent)])
    (seen,) = curious.observations
    assert set(seen.update.tensors) == set(factors) == {"3.lora_A", "3.lora_B"}
    assert not any(seen.gradient[name].any() for name in factors)
    built = seen.build_model().state_dict()
    assert torch.equal(built["3.lora_B"], prepared.state_dict()["3.lora_B"] + 0.5)
    assert all(torch.equal(built[name], make_model().state_dict()[name]) for name in ("0.weight", "1.running_var"))
