"""Records by their kind, without Flower's views."""

import gc
import weakref

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedsim.update import LocalProtocol, Update
from fedsim.wire.contents import array_records, config_records, metric_records
from fedsim.wire.partial_sums import PartialSums
from fedsim.wire.records import ARRAYS, METRICS, UPDATE, Contribution, from_reply, to_arrays, to_reply


def test_records_are_told_apart_as_flower_does():
    content = RecordDict({"a": to_arrays({}), "b": MetricRecord({"m": 1.0}), "c": ConfigRecord({"k": "v"})})
    assert array_records(content) == dict(content.array_records)
    assert metric_records(content) == dict(content.metric_records)
    assert config_records(content) == dict(content.config_records)
    with pytest.raises(KeyError):
        array_records(content)["b"]


@pytest.fixture
def without_cycles():
    """Nothing but reference counts frees memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_an_update_is_gone_with_its_last_reader(without_cycles):
    """Flower's views would keep it until the next search for cycles: hundreds of MB for a large model."""
    protocol = LocalProtocol(batch_size=1, steps=1, optimizer="sgd", lrs=(0.1,))
    content = to_reply(Contribution(Update({"w": torch.ones(3)}, "weights", 1), protocol))
    sums = PartialSums()
    assert sums.add(content)
    from_reply(content)
    assert METRICS in content
    assert UPDATE in content
    kept = weakref.ref(content[ARRAYS])
    del content
    assert kept() is None
