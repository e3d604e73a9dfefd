"""Tensors as Flower's records: the same on its wire, and whole between processes."""

import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedsim.records import from_arrays, to_arrays
from fedsim.tensor_records import TensorRecord

STATE = {
    "weight": torch.arange(12.0).reshape(3, 4).t(),  # not contiguous
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


def test_arrays_of_others_travel_too():
    record = to_arrays(STATE)
    record["flowers own"] = Array(np.ones(3))
    back = pickle.loads(pickle.dumps(record, 5))
    assert back == record
