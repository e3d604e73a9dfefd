"""Flower records: the same bytes as NumPy's own, and nothing that NumPy would not read."""

import io
import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedsim.ground_truth import GroundTruth
from fedsim.update import LocalProtocol, Update
from fedsim.wire.records import (
    AUDIT,
    Contribution,
    DecodedState,
    buffer_names,
    from_array,
    from_arrays,
    from_reply,
    to_array,
    to_arrays,
    to_reply,
)

TENSORS = [
    torch.randn(3, 4),
    torch.randn(3, 4, dtype=torch.float64).t(),
    torch.tensor(7),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.arange(5, dtype=torch.uint8),
    torch.randn(2).half(),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}")
def test_round_trip_is_bit_equal_and_flower_reads_it(tensor):
    array = to_array(tensor)
    back = from_array(array)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)
    np.testing.assert_array_equal(array.numpy(), tensor.numpy())
    assert array.data == Array(np.array(tensor.numpy(), order="C")).data
    assert torch.equal(from_array(Array(tensor.numpy())), tensor)


def test_the_tensor_has_memory_of_its_own():
    array = to_array(torch.zeros(3))
    from_array(array).add_(1)
    assert torch.equal(from_array(array), torch.zeros(3))


def test_pickled_objects_are_refused():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        from_array(Array("object", (1,), "numpy.ndarray", buffer.getvalue()))
    with pytest.raises(ValueError, match=r"must be numpy\.ndarray"):
        from_array(Array("float32", (1,), "pickle", pickle.dumps([1])))


def test_a_record_that_lies_about_its_bytes_is_refused():
    honest = to_array(torch.zeros(4))
    with pytest.raises(ValueError, match="the record says"):
        from_array(Array("float32", (2, 2), "numpy.ndarray", honest.data))


def test_a_reply_carries_the_update_and_the_protocol():
    update = Update({"w": torch.randn(2)}, "delta", 5, {"pos_embed": "fixed_pe"})
    protocol = LocalProtocol(batch_size=5, optimizer="sgd", lrs=(0.1,))
    truth = GroundTruth(torch.rand(2, 3, 4, 4, dtype=torch.float64), torch.tensor([1, 0]), ("a", "b"))
    content = to_reply(Contribution(update, protocol, 3, metrics={"train_loss": 1.0}, truth=truth))
    assert len(content.array_records) == len(content.metric_records) == 1
    back = from_reply(content, 4)
    taken = back.truth
    assert taken is not None
    assert torch.equal(taken.images, truth.images)
    assert torch.equal(taken.labels, truth.labels)
    assert taken.ids == truth.ids
    assert AUDIT not in content
    assert from_reply(content).truth is None
    assert (back.protocol, back.client, back.server_round, back.metrics) == (protocol, 3, 4, {"train_loss": 1.0})
    assert (back.update.kind, back.update.num_examples, back.update.withheld) == ("delta", 5, update.withheld)
    assert torch.equal(back.update.tensors["w"], update.tensors["w"])


def test_no_audit_record_unless_asked():
    content = to_reply(Contribution(Update({"w": torch.ones(1)}, "gradient", 1), LocalProtocol(1)))
    assert AUDIT not in content


def test_an_unknown_kind_is_refused():
    content = to_reply(Contribution(Update({"w": torch.ones(1)}, "gradient", 1), LocalProtocol(1)))
    content.config_records["fedsim.update"]["kind"] = "pickle"
    with pytest.raises(ValueError, match="kind"):
        from_reply(content)


def test_the_global_state_is_decoded_once_per_record():
    record = to_arrays({"w": torch.ones(2)})
    decoded = DecodedState()
    assert decoded.get(record) is decoded.get(record)
    assert decoded.get(ArrayRecord(dict(record))) is not decoded.get(record)
    assert torch.equal(from_arrays(record)["w"], torch.ones(2))


@pytest.mark.parametrize("kind", ["gradient", "delta", "weights"])
def test_buffers_travel_in_the_same_record_and_come_back_apart(kind):
    update = Update({"w": torch.randn(2)}, kind, 5, buffers={"bn.running_mean": torch.randn(3)})
    content = to_reply(Contribution(update, LocalProtocol(5)))
    assert len(content.array_records) == 1, "every strategy averages one record"
    assert buffer_names(content) == ["bn.running_mean"]
    back = from_reply(content).update
    assert set(back.tensors) == {"w"}
    assert torch.equal(back.buffers["bn.running_mean"], update.buffers["bn.running_mean"])
