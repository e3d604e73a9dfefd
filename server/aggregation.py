"""From a round's replies to the next global model: what stands between them and the user's strategy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvgM, FedTrimmedAvg, MultiKrum, QFedAvg, Strategy
from flwr.serverapp.strategy.fedopt import FedOpt

from fedsim.wire.contents import array_records, config_records, metric_records
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_UPDATE
from fedsim.wire.records import ARRAYS, NUM_EXAMPLES, UPDATE, buffer_names, from_array, to_array
from fedsim.wire.tensor_records import TensorRecord
from server.resume.strategy_state import strategy_layers
from server.sums.on_workers import carries_sum, means, shares_nothing, with_content
from server.sums.summing import FEWEST, Sums, in_groups

logger = getLogger(__name__)

STEPPING = (FedOpt, FedAvgM, QFedAvg)
"""Flower's strategies that take a step of their own along the clients' mean change.

Running statistics are no weights: a step that is smaller or larger than their change leaves statistics of no model, and
a variance below zero. Theirs are the clients' mean, and so are those of strategies that wrap another, which may clip
changes; where a layer adds noise, which makes no statistics either, they stay what the server sent.
"""

COMPARING = (MultiKrum, Bulyan)
"""Flower's strategies that choose by distances between whole weights, Krum among them.

They take ‖x‖² + ‖y‖² − 2x·y of them in float32, of which rounding leaves noise where weights are much larger than their
change: they get the change, whose distances are the same. One that is wrapped gets whole weights: what wraps it may
take the change itself, as Flower's do before they clip.
"""

Aggregated = tuple[ArrayRecord | None, MetricRecord | None]


def aggregate(
    strategy: Strategy,
    server_round: int,
    start: ArrayRecord,
    replies: Sequence[Message],
    *,
    whole_weights: bool = True,
    sums: Sums | None = None,
) -> Aggregated:
    """What the strategy makes of a round's replies, as if each were of a client that shared all its weights.

    Args:
        start: the global model that the round began with.
        replies: screened, in the order in which they are to be summed. No update is written into.
        whole_weights: the strategy averages whole weights: deltas are added to `start`, withheld tensors taken from it.
        sums: secure aggregation: a client that has nobody to be summed with is left out.
    """
    lone, speaking = _lone(replies, sums)
    if lone:
        names = ", ".join(map(str, sorted(lone)))
        by = (sums or Sums()).by
        logger.warning("round %d: %s aborts, no other shares the same as client %s", server_round, by, names)
        if any(carries_sum(reply) for reply in replies):
            lone = speaking
        replies = _without(replies, lone)
    if any(carries_sum(reply) for reply in replies):
        replies = list(means(replies))
    arrays, metrics = _of_speaking(strategy, server_round, start, replies, whole_weights)
    return None if lone and lone == speaking else arrays, metrics


def lone_clients(clients: Iterable[int], speaking: set[int], size: int | None) -> set[int]:
    """The clients that share something and in whose group fewer than `FEWEST` do; groups as in `in_groups`.

    A sum over one client is its update: secure aggregation aborts there. The server sees the model before and after,
    and a step that held one more client's update would show it.
    """
    groups = [speaking.intersection(group) for group in in_groups(clients, size)]
    return {client for group in groups if len(group) < FEWEST for client in group}


def complete(reply: Message, start: ArrayRecord) -> Message:
    """A reply with whole weights, in the order of the global model, where its client shared a delta or withheld some.

    Some of Flower's strategies go by the place of a tensor, not by its name: the order is no client's to choose.
    """
    kind = config_records(reply.content)[UPDATE]["kind"]
    sent = array_records(reply.content)[ARRAYS]
    if kind == "weights" and list(sent) == list(start):
        return reply
    weights: dict[str, Array] = {}
    for name, before in start.items():
        if name not in sent:
            weights[name] = before
        elif kind == "weights":
            weights[name] = sent[name]
        else:
            weights[name] = to_array(from_array(before) + from_array(sent[name]))
    return with_content(reply, RecordDict({**reply.content, ARRAYS: ArrayRecord(weights)}))


def restore(arrays: Mapping[str, Array], start: ArrayRecord, shared: set[str]) -> ArrayRecord:
    """The bits of `start` where nobody shared a tensor, and its types.

    Averaging n equal tensors rounds, and averaging integers makes floats: both are undone.
    """
    restored: dict[str, Array] = {}
    for name, before in start.items():
        if name not in shared:
            restored[name] = before
        elif arrays[name].dtype != before.dtype:
            restored[name] = to_array(from_array(arrays[name]).to(from_array(before).dtype))
        else:
            restored[name] = arrays[name]
    return TensorRecord.of(restored)


def _of_speaking(
    strategy: Strategy, server_round: int, start: ArrayRecord, replies: Sequence[Message], whole_weights: bool
) -> Aggregated:
    """Without the clients that answer and share nothing; their metrics still count.

    Where nobody shares anything the round leaves the model as it was.
    """
    speaking = [reply for reply in replies if not shares_nothing(reply)]
    if len(speaking) == len(replies):
        return _of_whole(strategy, server_round, start, speaking, whole_weights)
    arrays: ArrayRecord | None = start
    metrics: MetricRecord | None = None
    if any(not reply.has_error() for reply in speaking):
        arrays, metrics = _of_whole(strategy, server_round, start, speaking, whole_weights)
    answered = [reply for reply in replies if not reply.has_error()]
    return arrays, MetricRecord({**(metrics or {}), **_mean_metrics(answered)})


def _of_whole(
    strategy: Strategy, server_round: int, start: ArrayRecord, replies: Sequence[Message], whole_weights: bool
) -> Aggregated:
    if not whole_weights:
        return strategy.aggregate_train(server_round, replies)
    parts = list(strategy_layers(strategy))
    if few := next(filter(None, (_too_few(part, replies) for part in parts)), ""):
        logger.warning("round %d is left out: %s", server_round, few)
        return None, None
    shared = {name for reply in replies if not reply.has_error() for name in array_records(reply.content)[ARRAYS]}
    whole = [reply if reply.has_error() else complete(reply, start) for reply in replies]
    statistics: dict[str, Array] = {}
    if isinstance(strategy, STEPPING) or len(parts) > 1:
        answered = [reply for reply in whole if not reply.has_error()]
        names = {name for reply in answered for name in buffer_names(reply.content)}
        # Beside a server's noise the clients' mean would give away what the noise is to hide.
        noisy = any(getattr(part, "noise_multiplier", 0.0) for part in parts)
        statistics = {name: start[name] if noisy else _mean(answered, name) for name in sorted(names)}
        whole = [reply if reply.has_error() else _without_change(reply, start, names) for reply in whole]
    compares = isinstance(strategy, COMPARING)
    if compares:
        whole = [reply if reply.has_error() else _changes(reply, start) for reply in whole]
    arrays, metrics = strategy.aggregate_train(server_round, whole)
    if arrays is None:
        return None, metrics
    if compares:
        arrays = ArrayRecord({n: to_array(from_array(start[n]) + from_array(array)) for n, array in arrays.items()})
    return restore({**arrays, **statistics}, start, shared), metrics


def _too_few(strategy: object, replies: Sequence[Message]) -> str:
    """Why a robust rule cannot be robust over those that answered: Flower's would go on all the same."""
    answered = sum(not reply.has_error() for reply in replies)
    if isinstance(strategy, FedTrimmedAvg) and strategy.beta > 0 and int(strategy.beta * answered) < 1:
        return f"of {answered} replies beta={strategy.beta:g} trims none"
    if isinstance(strategy, MultiKrum) and answered < 2 * strategy.num_malicious_nodes + 3:
        return f"{answered} replies are less than 2f + 3 for num_malicious_nodes={strategy.num_malicious_nodes}"
    return ""


def _mean(replies: Sequence[Message], name: str) -> Array:
    """Of a tensor of whole weights, weighted by examples."""
    weights = [_number(next(iter(metric_records(reply.content).values())), NUM_EXAMPLES) or 0.0 for reply in replies]
    values = [from_array(array_records(reply.content)[ARRAYS][name]) for reply in replies]
    parts = [weight * value.double() for weight, value in zip(weights, values, strict=True)]
    return to_array((torch.stack(parts).sum(dim=0) / (sum(weights) or 1.0)).to(values[0].dtype))


def _without_change(reply: Message, start: ArrayRecord, names: set[str]) -> Message:
    """Whole weights as if these tensors had stayed; whole numbers, which never change, as those that can be scaled."""
    sent = array_records(reply.content)[ARRAYS]
    weights = {name: start[name] if name in names else array for name, array in sent.items()}
    for name, array in weights.items():
        if not (tensor := from_array(array)).is_floating_point():
            weights[name] = to_array(tensor.double())
    return with_content(reply, RecordDict({**reply.content, ARRAYS: ArrayRecord(weights)}))


def _changes(reply: Message, start: ArrayRecord) -> Message:
    """Whole weights less those of the start."""
    sent = array_records(reply.content)[ARRAYS]
    changes: dict[str, Array] = {}
    for name, array in sent.items():
        after, before = from_array(array), from_array(start[name])
        changes[name] = to_array(after - before if after.is_floating_point() else after.double() - before.double())
    return with_content(reply, RecordDict({**reply.content, ARRAYS: ArrayRecord(changes)}))


def _lone(replies: Sequence[Message], sums: Sums | None) -> tuple[set[int], set[int]]:
    """The clients that have nobody to be summed with, and all that share something.

    What clients of one sum share must have the same names: of a tensor that one of them shares alone the step would be
    its own.
    """
    if sums is None:
        return set(), set()
    answered = [reply for reply in replies if not reply.has_error()]
    speaking = {_client(reply) for reply in answered if not shares_nothing(reply)}
    if len({frozenset(array_records(reply.content)[SUM]) for reply in answered if carries_sum(reply)}) > 1:
        return speaking, speaking
    clients = [_client(reply) for reply in answered]
    lone = lone_clients(clients, speaking, sums.clients)
    shared = {_client(one): frozenset(array_records(one.content).get(ARRAYS, ())) for one in answered}
    for group in in_groups(clients, sums.clients):
        together = speaking.intersection(group)
        if len({shared[client] for client in together if shared[client]}) > 1:
            lone |= together
    return lone, speaking


def _without(replies: Sequence[Message], lone: set[int]) -> list[Message]:
    """The replies with nothing shared by these clients, and without any sum."""
    kept = []
    for reply in replies:
        if not reply.has_error():
            records = {k: record for k, record in reply.content.items() if k not in (SUM, SUM_OF, SUM_UPDATE)}
            nothing = {ARRAYS: ArrayRecord()} if _client(reply) in lone else {}
            reply = with_content(reply, RecordDict({**records, **nothing}))
        kept.append(reply)
    return kept


def _mean_metrics(replies: Sequence[Message]) -> dict[str, float]:
    """The numbers that all clients report, weighted by examples as Flower's strategies do."""
    reported = [next(iter(metric_records(reply.content).values()), MetricRecord()) for reply in replies]
    weights = [_number(record, NUM_EXAMPLES) or 0.0 for record in reported]
    total = sum(weights) or 1.0
    result: dict[str, float] = {}
    for name in reported[0]:
        values = [value for record in reported if (value := _number(record, name)) is not None]
        if name != NUM_EXAMPLES and len(values) == len(reported):
            result[name] = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    return result


def _number(record: MetricRecord, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else None


def _client(reply: Message) -> int:
    return int(config_records(reply.content)[UPDATE]["partition-id"])  # type: ignore[arg-type]
