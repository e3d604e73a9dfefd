"""fedsim's nouns as Flower records, and back: no pickle, one copy each way."""

import io
import json
import math
from functools import lru_cache
from typing import Any, cast, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsim.ground_truth import GroundTruth
from fedsim.update import Kind, LocalProtocol, State, Update

ARRAYS, CONFIG, METRICS, UPDATE, AUDIT = "arrays", "config", "metrics", "fedsim.update", "fedsim.audit"
NUM_EXAMPLES, SERVER_ROUND, TRAIN_LOSS = "num-examples", "server-round", "train_loss"
AUDITED = "fedsim.audited"
"""In a round's instructions: the server observes this round, so an audit record is of use."""
_NUMPY_STYPE = "numpy.ndarray"
_PLAIN_DTYPES = frozenset({"float16", "float32", "float64", "int32", "int64", "uint8", "bool"})


def to_array(tensor: Tensor) -> Array:
    """A tensor as Flower's `Array`: the bytes of `np.save`, made with a single copy."""
    # Not np.ascontiguousarray: it turns a scalar into a vector of one.
    array = tensor.detach().cpu().contiguous().numpy()
    dtype, shape = str(array.dtype), tuple(array.shape)
    data = b"".join((_npy_header(dtype, shape), array.tobytes()))
    return Array(dtype=dtype, shape=shape, stype=_NUMPY_STYPE, data=data)


@lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes that `np.save` puts in front of a C-ordered array; parsing them anew costs more than copying."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def from_array(array: Array) -> Tensor:
    """The tensor in Flower's `Array`, in memory of its own.

    Raises:
        ValueError: the bytes are no plain array (pickled objects are refused), or do not match what the
            record says of them.
    """
    if array.stype != _NUMPY_STYPE:
        raise ValueError(f"arrays must be {_NUMPY_STYPE}, not {array.stype!r}")
    if array.dtype in _PLAIN_DTYPES:
        header = _npy_header(array.dtype, tuple(array.shape))
        size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
        if array.data.startswith(header) and len(array.data) == len(header) + size:
            flat = np.frombuffer(array.data, dtype=array.dtype, offset=len(header))
            return torch.from_numpy(flat.reshape(array.shape).copy())
    decoded = np.load(io.BytesIO(array.data), allow_pickle=False)
    if str(decoded.dtype) != array.dtype or tuple(decoded.shape) != tuple(array.shape):
        raise ValueError(f"the record says {array.dtype}{array.shape}, its bytes {decoded.dtype}{decoded.shape}")
    return torch.from_numpy(decoded)


def to_arrays(state: State) -> ArrayRecord:
    record = ArrayRecord()
    for name, tensor in state.items():
        record[name] = to_array(tensor)
    return record


def from_arrays(record: ArrayRecord) -> State:
    return {name: from_array(array) for name, array in record.items()}


def update_kind(word: str) -> Kind:
    """The word as a kind of update.

    Raises:
        ValueError: it is none.
    """
    for kind in get_args(Kind):
        if word == kind:
            return cast(Kind, kind)
    raise ValueError(f"an update's kind is gradient, delta or weights, not {word!r}")


def to_reply(
    update: Update,
    protocol: LocalProtocol,
    partition_id: int,
    metrics: dict[str, float],
    truth: GroundTruth | None,
) -> RecordDict:
    """The content of a train reply: one ArrayRecord and one MetricRecord, as every strategy expects."""
    content = RecordDict()
    content[ARRAYS] = to_arrays({**update.tensors, **update.buffers})
    content[METRICS] = MetricRecord({NUM_EXAMPLES: update.num_examples, **metrics})
    content[UPDATE] = ConfigRecord(
        {
            "kind": update.kind,
            "partition-id": partition_id,
            "withheld": json.dumps(update.withheld),
            "buffers": list(update.buffers),
            "protocol": json.dumps(protocol.to_dict()),
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


def from_reply(content: RecordDict) -> tuple[Update, LocalProtocol, int]:
    """The update, the protocol and the partition id in a train reply.

    Raises:
        KeyError, ValueError, TypeError: the reply is no reply of a fedsim client.
    """
    config = content.config_records[UPDATE]
    kind = update_kind(str(config["kind"]))
    metrics = next(iter(content.metric_records.values()))
    withheld: dict[str, Any] = json.loads(str(config["withheld"]))
    arrays, buffers = from_arrays(content.array_records[ARRAYS]), buffer_names(content)
    update = Update(
        tensors={name: tensor for name, tensor in arrays.items() if name not in buffers},
        kind=kind,
        num_examples=int(metrics[NUM_EXAMPLES]),  # type: ignore[arg-type]
        withheld={str(name): str(by) for name, by in withheld.items()},
        buffers={name: arrays[name] for name in buffers},
    )
    protocol = LocalProtocol.from_dict(json.loads(str(config["protocol"])))
    return update, protocol, int(config["partition-id"])  # type: ignore[arg-type]


def buffer_names(content: RecordDict) -> list[str]:
    """Which arrays of a train reply are no parameters but buffers; they stand in the same record, as all strategies
    average one record.

    Raises:
        KeyError: the reply is no reply of a fedsim client.
    """
    names = content.config_records[UPDATE]["buffers"]
    return [str(name) for name in names]  # type: ignore[union-attr]


def take_ground_truth(content: RecordDict) -> GroundTruth | None:
    """Take the audit record out of a reply, so that nothing later can read it."""
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
