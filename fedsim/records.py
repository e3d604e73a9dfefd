"""fedsim's nouns as Flower records, and back: no pickle, one copy each way at most."""

import io
import json
import math
import warnings
from functools import cached_property, lru_cache
from typing import Any, cast, get_args

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedsim.contents import array_records, config_records, metric_records
from fedsim.ground_truth import GroundTruth
from fedsim.update import Kind, LocalProtocol, State, Update

ARRAYS, CONFIG, METRICS, UPDATE, AUDIT = "arrays", "config", "metrics", "fedsim.update", "fedsim.audit"
NUM_EXAMPLES, SERVER_ROUND, TRAIN_LOSS = "num-examples", "server-round", "train_loss"
AUDITED = "fedsim.audited"
"""In a round's instructions: the server observes this round, so an audit record is of use."""
_NUMPY_STYPE = "numpy.ndarray"
_PLAIN_DTYPES = frozenset({"float16", "float32", "float64", "int32", "int64", "uint8", "bool"})
with warnings.catch_warnings():
    # torch tells once in a process that it knows no read-only tensors; who asks for `copy=False` knows.
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(8), dtype=np.uint8))


class TensorArray(Array):
    """A tensor as Flower's `Array`: encoded as `np.save` does where bytes are asked for, and not before.

    Between processes of one machine its memory travels as it is (pickle's protocol 5, out of band), and arrives
    read-only. On Flower's own wire it is an `Array` like any other.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.__dict__.update(dtype=_dtype_name(values.dtype), shape=values.shape, stype=_NUMPY_STYPE, values=values)

    values: NDArray[Any]

    @cached_property
    def data(self) -> bytes:  # type: ignore[override]
        return b"".join((_npy_header(self.dtype, self.shape), self.values.tobytes()))

    def numpy(self) -> NDArray[Any]:
        return self.values.copy()

    def deflate(self) -> bytes:
        # The name of the class is part of Flower's format.
        return Array(self.dtype, self.shape, self.stype, self.data).deflate()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, tuple(other.shape), other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TensorArray({self.dtype}, {self.shape})"

    def __reduce__(self) -> tuple[type["TensorArray"], tuple[NDArray[Any]]]:
        return TensorArray, (self.values,)


def to_array(tensor: Tensor, copy: bool = True) -> Array:
    """A tensor as Flower's `Array`.

    Args:
        copy: False hands the tensor's memory over: nobody may write into it any more.
    """
    # Not np.ascontiguousarray: it turns a scalar into a vector of one.
    array = tensor.detach().cpu().contiguous().numpy()
    return TensorArray(array.copy() if copy else array)


@lru_cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """NumPy builds the name anew each time, which takes longer than everything else that is done with a small array."""
    return str(dtype)


@lru_cache
def _protocol_json(protocol: LocalProtocol) -> str:
    """Most clients of a run have the same."""
    return json.dumps(protocol.to_dict())


@lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes that `np.save` puts in front of a C-ordered array; parsing them anew costs more than copying."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


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
    if array.stype != _NUMPY_STYPE:
        raise ValueError(f"arrays must be {_NUMPY_STYPE}, not {array.stype!r}")
    if array.dtype in _PLAIN_DTYPES:
        header = _npy_header(array.dtype, tuple(array.shape))
        size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
        if array.data.startswith(header) and len(array.data) == len(header) + size:
            flat = np.frombuffer(array.data, dtype=array.dtype, offset=len(header)).reshape(array.shape)
            return torch.from_numpy(flat.copy() if copy else flat)
    decoded = np.load(io.BytesIO(array.data), allow_pickle=False)
    if str(decoded.dtype) != array.dtype or tuple(decoded.shape) != tuple(array.shape):
        raise ValueError(f"the record says {array.dtype}{array.shape}, its bytes {decoded.dtype}{decoded.shape}")
    return torch.from_numpy(decoded)


def to_arrays(state: State, copy: bool = True) -> ArrayRecord:
    record = ArrayRecord()
    for name, tensor in state.items():
        record[name] = to_array(tensor, copy)
    return record


def from_arrays(record: ArrayRecord, copy: bool = True) -> State:
    return {name: from_array(array, copy) for name, array in record.items()}


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
    """The content of a train reply: one ArrayRecord and one MetricRecord, as every strategy expects.

    The update's memory is handed over, not copied.
    """
    content = RecordDict()
    content[ARRAYS] = to_arrays({**update.tensors, **update.buffers}, copy=False)
    content[METRICS] = MetricRecord({NUM_EXAMPLES: update.num_examples, **metrics})
    content[UPDATE] = ConfigRecord(
        {
            "kind": update.kind,
            "partition-id": partition_id,
            "withheld": json.dumps(update.withheld),
            "buffers": list(update.buffers),
            "protocol": _protocol_json(protocol),
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
    config = config_records(content)[UPDATE]
    kind = update_kind(str(config["kind"]))
    metrics = next(iter(metric_records(content).values()))
    withheld: dict[str, Any] = json.loads(str(config["withheld"]))
    arrays, buffers = from_arrays(array_records(content)[ARRAYS]), buffer_names(content)
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
    names = config_records(content)[UPDATE]["buffers"]
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
