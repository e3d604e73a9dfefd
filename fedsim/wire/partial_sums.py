"""Σ n·u over clients where their updates were made, so that one update of a group travels, not one of each client."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.update import State
from fedsim.wire.blocks import Block
from fedsim.wire.contents import array_records, config_records, metric_records
from fedsim.wire.records import ARRAYS, METRICS, NUM_EXAMPLES, UPDATE, from_array, to_arrays
from fedsim.wire.tensor_records import TensorRecord

SUM_WANTED = "fedsim.sum"
"""In a round's instructions: how many clients make a group, whose updates may come back as their sum."""
WHOLE = "fedsim.whole"
"""In a round's instructions: the nodes whose updates are to travel besides."""
SUM = "fedsim.sum"
"""In a reply: Σ n·u over clients, with `SUM_OF` and `SUM_UPDATE` beside it. A reply without arrays was summed."""
SUM_OF, SUM_UPDATE, CLIENTS = "fedsim.sum-of", "fedsim.sum-update", "clients"


class Key(NamedTuple):
    """What clients of one sum have in common: names in alphabetical order, whatever theirs."""

    kind: str
    tensors: tuple[str, ...]
    metrics: tuple[str, ...]


Terms = State | Block
"""Tensors by name, as one block where they lie in one."""


@dataclass
class PartialSum:
    """Clients that share the same tensors and report the same metrics, in the order in which they were added.

    Attributes:
        terms: Σ n·u, in float32 (float64 where the update is or counts).
        metrics: Σ n·m.
        update: the first client's record of what kind its update is.
        own: nobody else reads the tensors: they may be added to in place.
    """

    terms: Terms
    examples: float
    clients: int
    metrics: dict[str, float]
    update: ConfigRecord
    own: bool = True

    @property
    def key(self) -> Key:
        return Key(str(self.update["kind"]), tuple(sorted(_names(self.terms))), tuple(sorted(self.metrics)))


class PartialSums:
    """One `PartialSum` for each set of tensors and metrics: nearly always one.

    Adding to it in one order gives the same bits wherever it is done.
    """

    def __init__(self) -> None:
        self.by_key: dict[Key, PartialSum] = {}

    def add(self, content: RecordDict) -> bool:
        """Add a train reply; False for one that shares no tensors.

        Raises:
            KeyError, TypeError, ValueError: it is no reply of a fedsim client; nothing was added.
        """
        record = array_records(content)[ARRAYS]
        if not record:
            return False
        metrics = {name: float(value) for name, value in metric_records(content)[METRICS].items()}  # type: ignore[arg-type]
        examples = metrics.pop(NUM_EXAMPLES)
        key = Key(str(config_records(content)[UPDATE]["kind"]), tuple(sorted(record)), tuple(sorted(metrics)))
        update = _terms(record)
        total = self.by_key.get(key)
        if total is None:
            record_of = config_records(content)[UPDATE]
            sums = {name: examples * value for name, value in metrics.items()}
            self.by_key[key] = PartialSum(_weighted(update, examples), examples, 1, sums, record_of)
            return True
        if not _one_block(total.terms, update):
            shared = _tensors(update)
            if any(shared[name].shape != tensor.shape for name, tensor in _tensors(total.terms).items()):
                raise ValueError("clients share tensors of different shapes: they have no sum")
        if not total.own:
            total.terms, total.own = _copies(total.terms), True
        _add(total.terms, update, examples)
        total.examples += examples
        total.clients += 1
        total.metrics = {name: value + examples * metrics[name] for name, value in total.metrics.items()}
        return True

    def merge(self, other: "PartialSums") -> None:
        """Add the sums of another group after this one's, and take over those that this one has not."""
        for key, more in other.by_key.items():
            total = self.by_key.get(key)
            if total is None:
                self.by_key[key] = more
                continue
            if not total.own:
                total.terms, total.own = _copies(total.terms), True
            _add(total.terms, more.terms, 1.0)
            total.examples += more.examples
            total.clients += more.clients
            total.metrics = {name: value + more.metrics[name] for name, value in total.metrics.items()}

    def contents(self) -> list[RecordDict]:
        """Each sum as the content of a reply; the sums' memory is handed over."""
        return [_pack(total) for total in self.by_key.values()]

    def __reduce__(self) -> tuple[object, ...]:
        return PartialSums.read, (self.contents(),)

    @classmethod
    def read(cls, contents: Iterable[RecordDict]) -> "PartialSums":
        """What `contents` made, perhaps in another process: its tensors may be read-only."""
        sums = cls()
        for content in contents:
            total = _unpack(content)
            sums.by_key[total.key] = total
        return sums


def mean_reply(content: RecordDict) -> RecordDict:
    """A sum as the train reply of one client with all examples, whose weighted mean is everybody's.

    Raises:
        ValueError: the clients of the sum have no examples between them.
    """
    total = _unpack(content)
    if total.examples <= 0:
        raise ValueError(f"{total.clients} clients report {total.examples:g} examples between them")
    if isinstance(total.terms, Block):
        terms: Terms = total.terms.with_values(total.terms.values / total.examples)
    else:
        terms = {name: tensor / total.examples for name, tensor in total.terms.items()}
    record = _record(terms)
    means = {name: value / total.examples for name, value in total.metrics.items()}
    numbers = MetricRecord({NUM_EXAMPLES: total.examples, **means})
    return RecordDict({ARRAYS: record, METRICS: numbers, UPDATE: total.update})


def _terms(record: ArrayRecord) -> Terms:
    """What a record holds, in its own memory."""
    block = record.block if isinstance(record, TensorRecord) else None
    return {name: from_array(array, copy=False) for name, array in record.items()} if block is None else block


def _record(terms: Terms) -> ArrayRecord:
    return TensorRecord.of_block(terms) if isinstance(terms, Block) else to_arrays(terms, copy=False)


def _tensors(terms: Terms) -> State:
    return terms.tensors if isinstance(terms, Block) else terms


def _names(terms: Terms) -> Iterable[str]:
    return terms.names if isinstance(terms, Block) else terms


def _copies(terms: Terms) -> Terms:
    if isinstance(terms, Block):
        return terms.with_values(terms.values.clone())
    return {name: tensor.clone() for name, tensor in terms.items()}


def _one_block(total: Terms, update: Terms) -> bool:
    """Whether to add numbers of one block to another's is to add each tensor to its own."""
    return isinstance(total, Block) and isinstance(update, Block) and total.like(update)


def _weighted(terms: Terms, weight: float) -> Terms:
    """weight·update, in the type of a sum."""
    if isinstance(terms, Block) and terms.values.dtype in (torch.float32, torch.float64):
        return terms.with_values(terms.values * weight)
    update = _tensors(terms)
    parts = [
        part
        if part.dtype in (torch.float32, torch.float64)
        else part.to(torch.float32 if part.dtype == torch.float16 else torch.float64)
        for part in update.values()
    ]
    return dict(zip(update, torch._foreach_mul(parts, weight), strict=True))


def _add(total: Terms, update: Terms, weight: float) -> None:
    """total += weight·update, in place and without a copy where the type is the same."""
    if isinstance(total, Block) and isinstance(update, Block) and total.like(update):
        total.values.add_(update.values, alpha=weight)
        return
    total, update = _tensors(total), _tensors(update)
    parts = [update[name] for name in total]
    parts = [
        part if part.dtype == to.dtype else part.to(to.dtype) for part, to in zip(parts, total.values(), strict=True)
    ]
    torch._foreach_add_(list(total.values()), parts, alpha=weight)


def _pack(total: PartialSum) -> RecordDict:
    record = _record(total.terms)
    numbers = {NUM_EXAMPLES: total.examples, CLIENTS: float(total.clients)}
    sums = {f"metric.{name}": value for name, value in total.metrics.items()}
    return RecordDict({SUM: record, SUM_OF: MetricRecord({**numbers, **sums}), SUM_UPDATE: total.update})


def _unpack(content: RecordDict) -> PartialSum:
    numbers = {name: float(value) for name, value in metric_records(content)[SUM_OF].items()}  # type: ignore[arg-type]
    return PartialSum(
        terms=_terms(array_records(content)[SUM]),
        examples=numbers[NUM_EXAMPLES],
        clients=int(numbers[CLIENTS]),
        metrics={name.removeprefix("metric."): v for name, v in numbers.items() if name.startswith("metric.")},
        update=config_records(content)[SUM_UPDATE],
        own=False,
    )


def sum_size(config: ConfigRecord) -> int:
    """How many clients make a group in this round; 0 where every update is to travel."""
    return int(config.get(SUM_WANTED, 0))  # type: ignore[arg-type]
