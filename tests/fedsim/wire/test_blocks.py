"""Tensors in one block: the same values, and the same sums to the bit, as one by one."""

import json
import pickle

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from fedsim.update import LocalProtocol, Update
from fedsim.wire.blocks import Block, copied
from fedsim.wire.partial_sums import PartialSums
from fedsim.wire.records import ARRAYS, METRICS, UPDATE, Contribution, from_arrays, to_array, to_arrays, to_reply
from fedsim.wire.reply.checks import ReplyRules, check_train_reply
from fedsim.wire.reply.values import MalformedReply
from fedsim.wire.tensor_records import TensorRecord

SHAPES = {"weight": (5, 7), "bias": (5,), "scale": (), "pos": (1, 3, 11)}


def state(seed, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng).to(dtype) for name, shape in SHAPES.items()}


def reply(seed, in_block=True, examples=3, **other):
    tensors = copied(state(seed) | other) if in_block else state(seed) | other
    protocol = LocalProtocol(2, steps=1, optimizer="sgd", lrs=(0.1,))
    return to_reply(Contribution(Update(tensors, "weights", examples), protocol, metrics={"train_loss": 0.5}))


def rules():
    return ReplyRules("weights", frozenset(SHAPES))


def test_copies_are_one_block_and_share_no_memory_with_what_was_copied():
    tensors = {name: torch.nn.Parameter(tensor) for name, tensor in state(0).items()}
    copies = copied(tensors)
    block = Block.of(copies)
    assert block.names == tuple(SHAPES)
    assert block.shapes == tuple(SHAPES.values())
    assert all(one.equal(tensors[name]) and one.shape == tensors[name].shape for name, one in copies.items())
    assert not any(one.requires_grad for one in copies.values())
    before = {name: one.clone() for name, one in copies.items()}
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
    assert all(one.equal(before[name]) for name, one in copies.items())
    assert all(
        one.equal(copies[name]) and one.data_ptr() == copies[name].data_ptr() for name, one in block.tensors.items()
    )


def test_what_is_not_a_whole_block_is_none():
    copies = copied(state(0))
    assert Block.of({}) is None
    assert Block.of(state(0)) is None
    assert Block.of(dict(list(copies.items())[1:])) is None
    assert Block.of(dict(list(copies.items())[:-1])) is None
    assert Block.of(dict(reversed(copies.items()))) is None
    assert Block.of(copies | {"bias": torch.zeros(5)}) is None
    assert Block.of(copies | {"weight": copies["weight"].reshape(7, 5).T}) is None
    mixed = copied(state(0) | {"bias": torch.zeros(5, dtype=torch.float64)})
    assert Block.of(mixed) is None
    assert mixed["bias"].dtype == torch.float64


def test_a_record_of_a_block_is_a_record_like_any_other():
    tensors = state(1)
    record = to_arrays(copied(tensors), copy=False)
    assert record.block is not None
    assert list(record) == list(SHAPES)
    assert len(record) == len(SHAPES)
    assert "bias" in record
    plain = ArrayRecord({name: to_array(tensor) for name, tensor in tensors.items()})
    assert record == plain
    assert plain == record
    assert record.copy() == plain
    assert record.object_id == plain.object_id
    assert all(tensor.equal(tensors[name]) for name, tensor in from_arrays(record).items())


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_block_travels_as_one(protocol):
    record, buffers = to_arrays(copied(state(1)), copy=False), []
    out = {"buffer_callback": buffers.append} if protocol == 5 else {}
    sent = pickle.loads(pickle.dumps(record, protocol=protocol, **out), buffers=buffers)
    assert len(buffers) == (protocol == 5)
    assert isinstance(sent, TensorRecord)
    assert sent == record
    assert (sent.block is not None) == (protocol == 5)


def test_a_changed_record_is_no_block_any_more():
    for change in ("replace", "delete"):
        record = to_arrays(copied(state(1)), copy=False)
        if change == "replace":
            record["bias"] = to_array(torch.ones(5))
        else:
            del record["bias"]
        assert record.block is None
        assert ("bias" in record) == (change == "replace")
        assert len(list(record)) == len(record) == len(SHAPES) - (change == "delete")
        if change == "replace":
            assert from_arrays(record)["bias"].equal(torch.ones(5))
        assert list(pickle.loads(pickle.dumps(record, protocol=5))) == list(record)


@pytest.mark.parametrize("forms", [(True, True, True), (True, False, True), (False, True, True), (True, True, False)])
def test_sums_of_blocks_are_those_of_single_tensors_to_the_bit(forms):
    def total(in_block):
        left, right = PartialSums(), PartialSums()
        for seed, form in enumerate(in_block):
            assert (left if seed < 2 else right).add(reply(seed, form, examples=seed + 3))
        left.merge(pickle.loads(pickle.dumps(right, protocol=5)))
        left.merge(pickle.loads(pickle.dumps(right, protocol=5)))
        (content,) = left.contents()
        return from_arrays(content["fedsim.sum"])

    plain = total((False, False, False))
    weights = [3, 4, 10]  # the last twice
    for name, tensor in total(forms).items():
        assert tensor.equal(plain[name])
        slow = sum(weight * state(seed)[name].double() for seed, weight in enumerate(weights))
        torch.testing.assert_close(tensor.double(), slow, rtol=1e-5, atol=1e-5)


def test_a_sum_is_added_to_no_memory_of_another():
    first, second = reply(0), reply(1)
    before = [from_arrays(one[ARRAYS]) for one in (first, second)]
    sums = PartialSums()
    sums.add(first)
    received = PartialSums.read(sums.contents())
    received.add(second)
    assert all(t.equal(before[0][name]) for name, t in from_arrays(first[ARRAYS]).items())
    assert all(t.equal(before[1][name]) for name, t in from_arrays(second[ARRAYS]).items())


def test_clients_with_tensors_of_other_shapes_have_no_sum_in_a_block_either():
    sums = PartialSums()
    sums.add(reply(0))
    with pytest.raises(ValueError, match="different shapes"):
        sums.add(reply(1, bias=torch.zeros(4)))


def test_other_types_are_added_in_the_type_of_the_sum():
    half, sums = {name: tensor.half() for name, tensor in state(0).items()}, PartialSums()
    sums.add(reply(0, **half))
    sums.add(reply(1))
    (total,) = sums.by_key.values()
    for name, tensor in from_arrays(sums.contents()[0]["fedsim.sum"]).items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, 3 * half[name].float() + 3 * state(1)[name])
    assert total.clients == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bias": torch.full((5,), torch.nan)}, "tensor bias has values that are not finite"),
        ({"pos": torch.full((1, 3, 11), 2e12)}, r"tensor pos has values up to 2.0e\+12"),
        ({"bias": torch.zeros(4)}, r"tensor bias has the shape \(4\), the model's has \(5\)"),
        ({name: tensor.double() for name, tensor in state(0).items()}, "tensor weight is of 'float64', the model's"),
        ({"more": torch.zeros(1)}, "tensor 'more' is none that clients share"),
    ],
)
@pytest.mark.parametrize("in_block", [True, False])
def test_a_block_is_refused_in_the_words_of_its_tensors(in_block, changes, words):
    start = to_arrays(state(9))
    check_train_reply(reply(0, in_block), start, rules())
    with pytest.raises(MalformedReply, match=words):
        check_train_reply(reply(0, in_block, **changes), start, rules())


def test_many_large_numbers_of_a_block_pass_where_each_tensor_does():
    """Together their squares are more than one tensor's may be."""
    large = {name: torch.full(shape, 9e11) for name, shape in SHAPES.items()}
    check_train_reply(reply(0, **large), to_arrays(state(9)), rules())


def test_a_block_that_lacks_a_parameter_is_refused():
    content = reply(0)
    tensors = {name: tensor for name, tensor in from_arrays(content[ARRAYS]).items() if name != "scale"}
    content[ARRAYS] = to_arrays(copied(tensors), copy=False)
    assert content[ARRAYS].block is not None
    with pytest.raises(MalformedReply, match="tensor scale is missing"):
        check_train_reply(content, to_arrays(state(9)), rules())
    content[UPDATE]["withheld"] = json.dumps({"scale": "gate"})
    check_train_reply(content, to_arrays(state(9)), ReplyRules("weights", frozenset(SHAPES), defenses=("gate",)))


def test_a_protocol_is_checked_for_each_number_of_examples():
    start, content = to_arrays(state(9)), reply(0, examples=2)
    check_train_reply(content, start, rules())
    check_train_reply(content, start, rules())
    content[METRICS]["num-examples"] = 1  # of which a step cannot have read two
    with pytest.raises(MalformedReply, match="batch_size"):
        check_train_reply(content, start, rules())


def test_read_only_memory_is_read():
    record = to_arrays(copied(state(1)), copy=False)
    buffers = []
    data = pickle.dumps(record, protocol=5, buffer_callback=buffers.append)
    sent = pickle.loads(data, buffers=[bytes(memory) for memory in buffers])
    assert not sent["bias"].values.flags.writeable
    assert np.array_equal(sent["bias"].numpy(), state(1)["bias"].numpy())
