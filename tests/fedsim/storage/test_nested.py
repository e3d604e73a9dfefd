"""Whatever is flattened comes back with its types and bits."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.storage.nested import flatten, unflatten
from fedsim.wire.records import from_array, to_array


def there_and_back(value):
    tree, arrays = flatten(value)
    return unflatten(json.loads(json.dumps(tree)), lambda name: arrays[name].copy())


PLAIN = [
    None,
    True,
    3,
    0.1 + 0.2,
    float("inf"),
    -0.0,
    "text/with: ünïcode",
    b"\x00\xff",
    [],
    [1, [2.5, "x"]],
    (1, (2, None)),
    {1: "a", "1": "b"},
    {"dict": [1], "tuple": {"ndarray": None}},
    Counter({3: 2, 7: 1}),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values(value):
    found = there_and_back(value)
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_of_every_kind(dtype, shape):
    array = np.asarray(np.linspace(0.1, 300, np.prod(shape, dtype=int)).reshape(shape)).astype(dtype)
    value = {"a": array, "b": [torch.from_numpy(array), array.dtype.type(1)], "c": to_array(torch.from_numpy(array))}
    found = there_and_back(value)
    assert found["a"].dtype == array.dtype
    assert found["a"].shape == shape
    assert found["a"].tobytes() == array.tobytes()
    assert torch.equal(found["b"][0], torch.from_numpy(array))
    assert type(found["b"][1]) is array.dtype.type
    assert isinstance(found["c"], Array)
    assert torch.equal(from_array(found["c"]), torch.from_numpy(array))


def test_records_keep_their_order_and_bytes():
    record = RecordDict(
        {
            "memory": ArrayRecord({"b/x": Array(np.float32([[1, 2]])), "a": Array(np.array(3))}),
            "numbers": MetricRecord({"n": 3, "f": 0.1, "list": [1.5, 2.5]}),
            "words": ConfigRecord({"s": "x", "raw": b"\x01", "flags": [True, False]}),
        }
    )
    found = there_and_back({7: record})[7]
    assert found == record
    assert list(found["memory"]) == ["b/x", "a"]
    assert [array.data for array in found["memory"].values()] == [array.data for array in record["memory"].values()]
    assert type(found["numbers"]) is MetricRecord


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [object()]}, "a/0 is a object"),
        (lambda: None, "it is a function"),
        ({("x", 1): 2}, "it has a tuple for a key"),
        (np.array(["text"]), "it is an array of <U4"),
        (np.array([None]), "it is an array of object"),
        ({"z": np.zeros(1, dtype=np.complex64)}, "z is an array of complex64"),
    ],
)
def test_what_cannot_come_back_is_named(value, words):
    with pytest.raises(TypeError, match=words):
        flatten(value)


def test_two_arrays_on_one_way_are_refused():
    with pytest.raises(ValueError, match="two arrays are called /a/b"):
        flatten({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)})


@pytest.mark.parametrize("tree", [{"pickle": "x"}, {}, {"tuple": [], "dict": []}, {"dict": [["a"]]}, {"bytes": "#"}])
def test_foreign_trees_are_refused(tree):
    with pytest.raises((ValueError, KeyError, TypeError)):
        unflatten(tree, {}.__getitem__)
