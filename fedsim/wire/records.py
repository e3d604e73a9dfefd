"""fedsim's nouns as Flower records, and back: no pickle, one copy each way at most."""

import io
import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from tokenize import TokenError
from typing import Any, cast, get_args
from zipfile import BadZipFile

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedsim.ground_truth import GroundTruth
from fedsim.update import Kind, LocalProtocol, Shared, State, Update
from fedsim.wire.blocks import Block
from fedsim.wire.contents import array_records, config_records, metric_records
from fedsim.wire.tensor_records import NUMPY_STYPE, TensorArray, TensorRecord, npy_header

ARRAYS, CONFIG, METRICS, UPDATE, AUDIT = "arrays", "config", "metrics", "fedsim.update", "fedsim.audit"
NUM_EXAMPLES, SERVER_ROUND, TRAIN_LOSS = "num-examples", "server-round", "train_loss"
SKIPPED_STEPS = "skipped_steps"
AUDITED = "fedsim.audited"
"""In a round's instructions: the clients that the server observes, of whom alone an audit record is of use."""


def instruct(messages: Iterable[Message], values: Mapping[str, Any]) -> None:
    """Write these into the instructions of a round; several messages may hold the same ones."""
    for content in {id(message.content): message.content for message in messages}.values():
        instructions = config_records(content).get(CONFIG)
        if instructions is None:
            content[CONFIG] = instructions = ConfigRecord()
        instructions.update(values)


_PLAIN_DTYPES = frozenset({"float16", "float32", "float64", "int32", "int64", "uint8", "bool"})
with warnings.catch_warnings():
    # torch tells once in a process that it knows no read-only tensors; who asks for `copy=False` knows.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(8), dtype=np.uint8))


def to_array(tensor: Tensor, copy: bool = True) -> Array:
    """A tensor as Flower's `Array`.

    Args:
        copy: False hands the tensor's memory over: nobody may write into it any more.
    """
    array = tensor.numpy(force=True)
    return TensorArray(array if array.flags.c_contiguous and not copy else array.copy())


@lru_cache
def _protocol_json(protocol: LocalProtocol) -> str:
    """Most clients of a run have the same."""
    return json.dumps(protocol.to_dict())


def from_array(array: Array, copy: bool = True) -> Tensor:
    """The tensor in Flower's `Array`.

    Args:
        copy: False: the array's own memory where it holds a tensor, which may be read-only: writing into it may
            end the process.

    Raises:
        ValueError: the bytes are no plain array (pickled objects are refused), or do not match what the
            record says of them.
    """
    if isinstance(array, TensorArray):
        return torch.from_numpy(array.values.copy() if copy else array.values)
    if array.stype != NUMPY_STYPE:
        raise ValueError(f"arrays must be {NUMPY_STYPE}, not {array.stype!r}")
    if array.dtype in _PLAIN_DTYPES:
        header = npy_header(array.dtype, tuple(array.shape))
        size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
        if array.data.startswith(header) and len(array.data) == len(header) + size:
            flat = np.frombuffer(array.data, dtype=array.dtype, offset=len(header)).reshape(array.shape)
            return torch.from_numpy(flat.copy() if copy else flat)
    try:
        decoded = np.load(io.BytesIO(array.data), allow_pickle=False)
    except (EOFError, BadZipFile, MemoryError, OverflowError, TokenError) as error:
        raise ValueError(f"no plain array: {error}") from error
    if not isinstance(decoded, np.ndarray):
        raise ValueError(f"no plain array: {type(decoded).__name__}")
    if str(decoded.dtype) != array.dtype or tuple(decoded.shape) != tuple(array.shape):
        raise ValueError(f"the record says {array.dtype}{array.shape}, its bytes {decoded.dtype}{decoded.shape}")
    return torch.from_numpy(decoded)


def to_arrays(state: State, copy: bool = True) -> ArrayRecord:
    """Tensors as Flower's record; `copy` as in `to_array`."""
    if not copy and (block := Block.of(state)) is not None and block.values.device.type == "cpu":
        return TensorRecord.of_block(block)
    return TensorRecord.of({name: to_array(tensor, copy) for name, tensor in state.items()})


def from_arrays(record: ArrayRecord, copy: bool = True) -> State:
    return {name: from_array(array, copy) for name, array in record.items()}


@dataclass(frozen=True)
class Contribution(Shared):
    """What a client answers to an instruction to train, or several in a sum.

    Attributes:
        metrics: what it reports beside the number of examples.
        truth: what its model saw, where the operator of a simulation asked for it: for the scorer alone.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    truth: GroundTruth | None = None


def to_reply(sent: Contribution) -> RecordDict:
    """The content of a train reply: one ArrayRecord and one MetricRecord, as every strategy expects.

    The update's memory is handed over, not copied.
    """
    update, truth = sent.update, sent.truth
    content = RecordDict()
    content[ARRAYS] = to_arrays({**update.tensors, **update.buffers}, copy=False)
    content[METRICS] = MetricRecord({NUM_EXAMPLES: update.num_examples, **sent.metrics})
    content[UPDATE] = _config(
        {
            "kind": update.kind,
            "partition-id": sent.client,
            "withheld": json.dumps(update.withheld) if update.withheld else "{}",
            "buffers": list(update.buffers),
            "protocol": _protocol_json(sent.protocol),
        }
    )
    if truth is not None:
        content[AUDIT] = ConfigRecord(
            {
                "images": to_array(truth.images).data,
                "private": to_array(truth.originals).data,
                "labels": [int(label) for label in truth.labels],
                "ids": list(truth.ids),
            }
        )
    return content


def _config(values: dict[str, Any]) -> ConfigRecord:
    """Of values whose types are known: Flower checks each anew, which takes longer than the rest."""
    record = ConfigRecord()
    record.__dict__["_data"] = values
    return record


def from_reply(content: RecordDict, server_round: int = 0) -> Contribution:
    """What a client answered: the truth is taken out of the reply, the tensors are its own memory (`copy=False`).

    Raises:
        KeyError, ValueError, TypeError: the reply is no reply of a fedsim client.
    """
    truth = _take_ground_truth(content)
    config = config_records(content)[UPDATE]
    if (kind := str(config["kind"])) not in get_args(Kind):
        raise ValueError(f"an update's kind is gradient, delta or weights, not {kind!r}")
    metrics = dict(metric_records(content)[METRICS])
    withheld: dict[str, Any] = json.loads(str(config["withheld"]))
    arrays, buffers = from_arrays(array_records(content)[ARRAYS], copy=False), buffer_names(content)
    update = Update(
        tensors={name: tensor for name, tensor in arrays.items() if name not in buffers},
        kind=cast(Kind, kind),
        num_examples=int(metrics.pop(NUM_EXAMPLES)),  # type: ignore[arg-type]
        withheld={str(name): str(by) for name, by in withheld.items()},
        buffers={name: arrays[name] for name in buffers},
    )
    return Contribution(
        update,
        LocalProtocol.from_dict(json.loads(str(config["protocol"]))),
        int(config["partition-id"]),  # type: ignore[arg-type]
        server_round,
        metrics=metrics,  # type: ignore[arg-type]
        truth=truth,
    )


def buffer_names(content: RecordDict) -> list[str]:
    """Which arrays of a train reply are no parameters but buffers; they stand in the same record, as all strategies
    average one record.

    Raises:
        KeyError: the reply is no reply of a fedsim client.
    """
    names = config_records(content)[UPDATE]["buffers"]
    return [str(name) for name in names]  # type: ignore[union-attr]


def _take_ground_truth(content: RecordDict) -> GroundTruth | None:
    record = content.pop(AUDIT, None)
    if not isinstance(record, ConfigRecord):
        return None
    images, private = (
        torch.from_numpy(np.load(io.BytesIO(record[key]), allow_pickle=False))  # type: ignore[arg-type]
        for key in ("images", "private")
    )
    return GroundTruth(
        images=images,
        labels=torch.tensor(record["labels"], dtype=torch.long),
        ids=tuple(record["ids"]),  # type: ignore[arg-type]
        private=private,
    )


class DecodedState:
    """Decodes the global state once for all messages that carry the same record."""

    def __init__(self) -> None:
        self._record: ArrayRecord | None = None
        self._state: State = {}

    def get(self, record: ArrayRecord) -> State:
        """The state; callers must not write into it."""
        if record is not self._record:
            self._state = from_arrays(record)
            self._record = record
        return self._state
