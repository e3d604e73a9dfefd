"""Tensors as Flower's records: the same on its wire, and whole between processes."""

import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedsim.wire.records import from_arrays, to_arrays
from fedsim.wire.tensor_records import TensorArray, TensorRecord

STATE = {
    "weight": torch.arange(12.0).reshape(3, 4).t(),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "flags": torch.tensor([True, False]),
    "half": torch.randn(2).half(),
}


def same(one, other):
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_flower_sees_one_of_its_own_records():
    """Name, object id and bytes are those of a record that Flower made, and what it sends comes back."""
    record = to_arrays(STATE)
    plain = ArrayRecord()
    for name, tensor in STATE.items():
        plain[name] = Array(np.array(tensor.numpy(), order="C"))
    assert record == plain
    assert record.deflate() == plain.deflate()
    assert record.object_id == plain.object_id
    assert same(from_arrays(ArrayRecord.inflate(record.deflate(), record.children)), STATE)
    record["more"] = Array(np.ones(2))
    assert len(record) == len(STATE) + 1
    with pytest.raises(TypeError, match="Value must be"):
        record["wrong"] = 1


@pytest.mark.parametrize("protocol", [4, 5])
def test_it_comes_out_of_a_pickle_as_it_went_in(protocol):
    back = pickle.loads(pickle.dumps(to_arrays(STATE), protocol))
    assert type(back) is TensorRecord
    assert same(from_arrays(back), STATE)


def test_memory_travels_out_of_band_and_is_not_copied():
    record, buffers = to_arrays(STATE), []
    data = pickle.dumps(record, 5, buffer_callback=buffers.append)
    assert len(buffers) == len(STATE)
    back = pickle.loads(data, buffers=buffers)
    assert same(from_arrays(back), STATE)
    assert np.shares_memory(back["weight"].values, record["weight"].values)
    frozen = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
    assert not frozen["weight"].values.flags.writeable
    assert frozen["weight"].numpy().flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        Array(np.ones(3)),
        TensorArray(np.arange(12.0).reshape(3, 4).T),
        TensorArray(np.array(["2026-11-22"], dtype="datetime64[D]")),
        TensorArray(np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")])),
    ],
    ids=["of Flower", "not contiguous", "dates", "fields"],
)
def test_arrays_that_no_tensor_makes_travel_too(array):
    record = to_arrays(STATE)
    record["odd"] = array
    back = pickle.loads(pickle.dumps(record, 5))
    assert list(back) == list(record)
    values = [getattr(one["odd"], "values", None) for one in (back, record)]
    assert back["odd"] == array if values[1] is None else (values[0] == values[1]).all()
    assert values[1] is None or values[0].dtype == values[1].dtype


def test_objects_are_never_sent_as_their_addresses():
    """In another process they would be read as pointers."""
    record = to_arrays({})
    record["odd"] = TensorArray(np.array([{"a": 1}, "b"], dtype=object))
    data = pickle.dumps(record, 5, buffer_callback=lambda buffer: pytest.fail("memory of objects"))
    assert pickle.loads(data)["odd"].values.tolist() == [{"a": 1}, "b"]
