"""Could an honest client have sent this reply? Functions of the reply and of what the server knows, without state.

They run on the server, and on a worker before it sums an update. Whether plausible numbers are the client's own they
cannot tell: that is the business of robust strategies.
"""

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import nn

from fedsim.settings.local.limits import LARGEST, LARGEST_BATCH, MOST_STEPS
from fedsim.update import Kind, LocalProtocol, Precision, Update
from fedsim.wire.blocks import Block
from fedsim.wire.records import (
    ARRAYS,
    AUDIT,
    METRICS,
    NUM_EXAMPLES,
    SKIPPED_STEPS,
    TRAIN_LOSS,
    UPDATE,
    Contribution,
    from_reply,
    to_array,
)
from fedsim.wire.reply.values import (
    MalformedReply,
    check_keys,
    check_values,
    decoded,
    number,
    parsed,
    shown,
    values_like,
    whole,
)
from fedsim.wire.tensor_records import TensorRecord, dtype_name

MOST_EXAMPLES = 10**7
LONGEST_KEPT = 2**12
"""Characters of a protocol that is remembered as checked."""
LONGEST_NAME = 200
LONGEST_PATH = 2**12
MOST_METRICS = 200

TENSOR_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)
METRIC_NAME = re.compile(r"\w[\w .,:=()%+/-]*")
UPDATE_KEYS = frozenset({"kind", "partition-id", "withheld", "buffers", "protocol"})
AUDIT_KEYS = frozenset({"images", "private", "labels", "ids"})
IMAGE_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class ReplyRules:
    """What the server knows of every honest reply.

    Attributes:
        kind: what clients share.
        trained: parameters that travel unless a defense withholds them.
        buffers: floating-point buffers that travel beside them.
        defenses: names of those that run: they alone withhold tensors and add metrics.
        counting: those of them that report a privacy budget.
        batch_size: pictures of a local step, at most; None: not known.
        image_shape: (channels, height, width) of the pictures in an audit record; None: there are no audit records.
        most_examples: that a client may claim, and its weight in the mean with them.
        partition_sizes: pictures of each client, of which it may claim no more; None: not known.
    """

    kind: Kind
    trained: frozenset[str]
    buffers: frozenset[str] = frozenset()
    defenses: tuple[str, ...] = ()
    counting: tuple[str, ...] = ()
    batch_size: int | None = None
    image_shape: tuple[int, int, int] | None = None
    most_examples: int = MOST_EXAMPLES
    partition_sizes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, model: nn.Module, kind: Kind, **known: Any) -> "ReplyRules":
        """The rules for clients that train `model`, which has every defense applied.

        Args:
            known: the other attributes.
        """
        stored = set(model.state_dict())
        buffers = {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        return cls(kind, frozenset(trained), frozenset(buffers & stored), **known)


def read_train_reply(
    content: RecordDict, server_round: int, start: ArrayRecord, rules: ReplyRules | None, client: int | None = None
) -> Contribution | None:
    """`from_reply`, checked where there are rules; None where the update was summed before it travelled."""
    if rules is not None:
        check_train_reply(content, start, rules, client)
    return from_reply(content, server_round) if ARRAYS in content else None


@np.errstate(over="ignore", invalid="ignore")
def check_train_reply(content: RecordDict, start: ArrayRecord, rules: ReplyRules, client: int | None = None) -> None:
    """One pass over the update's memory.

    Args:
        start: the global model that the client was sent.
        client: the partition that the reply must come from; None: any.

    Raises:
        MalformedReply: naming what is wrong.
    """
    optional = {} if rules.image_shape is None else {AUDIT: ConfigRecord}
    _check_records(content, {ARRAYS: ArrayRecord, METRICS: MetricRecord, UPDATE: ConfigRecord}, optional)
    metrics, update = content[METRICS], content[UPDATE]
    examples = _check_train_metrics(metrics, rules)
    check_keys("the update", update, UPDATE_KEYS)
    withheld = parsed("withheld", update["withheld"])
    _check_shared(update["kind"], content[ARRAYS], update["buffers"], withheld, start, rules)
    _check_partition(update["partition-id"], client)
    _check_claim(examples, client, rules)
    steps, batch = _check_protocol(update["protocol"], examples, rules)
    if AUDIT in content and rules.image_shape is not None:
        _check_audit(content[AUDIT], rules.image_shape, steps * batch)


@np.errstate(over="ignore", invalid="ignore")
def check_shared(update: Update, start: ArrayRecord, rules: ReplyRules) -> None:
    """What `check_train_reply` says of the update alone: its kind, and names, shapes and values of its tensors.

    Args:
        start: the global model that the client was sent.

    Raises:
        MalformedReply: naming what is wrong.
    """
    arrays = {name: to_array(tensor, copy=False) for name, tensor in {**update.tensors, **update.buffers}.items()}
    _check_shared(update.kind, arrays, list(update.buffers), update.withheld, start, rules)


def _check_shared(
    kind: object, arrays: Any, buffers: object, withheld: dict[str, Any], start: ArrayRecord, rules: ReplyRules
) -> None:
    if kind != rules.kind:
        raise MalformedReply(f"its kind is {shown(kind)}, where clients share {rules.kind}")
    _check_withheld(withheld, rules)
    block = arrays.block if isinstance(arrays, TensorRecord) else None
    if block is None or buffers != []:
        _check_names(arrays, buffers, frozenset(withheld), rules)
    else:
        _check_names_of_block(block.names, frozenset(withheld), rules)
    if block is not None and _is_plain(block, start):
        return
    for name, array in arrays.items():
        check_values(f"tensor {name}", values_like(name, array, start[name]))


def _is_plain(block: Block, start: ArrayRecord) -> bool:
    """Whether types and shapes are the model's, and all numbers together pass as those of each tensor would."""
    values, models = block.values.numpy(), dict(start.items())
    if values.dtype == np.float16 or not np.dot(values, values) <= LARGEST**2:
        return False
    dtype = dtype_name(values.dtype)
    return all(
        models[name].dtype == dtype and tuple(models[name].shape) == shape
        for name, shape in zip(block.names, block.shapes, strict=True)
    )


def check_evaluate_reply(content: RecordDict, rules: ReplyRules) -> None:
    """Raises MalformedReply, naming what is wrong."""
    _check_records(content, {METRICS: MetricRecord}, {})
    metrics = content[METRICS]
    check_keys("the metrics", metrics, frozenset({NUM_EXAMPLES, "loss", "accuracy"}))
    whole(NUM_EXAMPLES, metrics[NUM_EXAMPLES], 1, rules.most_examples)
    number("loss", metrics["loss"], 0.0)
    number("accuracy", metrics["accuracy"], 0.0, 1.0)


def _check_records(content: RecordDict, wanted: Mapping[str, type], optional: Mapping[str, type]) -> None:
    kinds = {**wanted, **optional}
    for key, record in content.items():
        if key not in kinds:
            raise MalformedReply(f"a {type(record).__name__} called {shown(key)} is no part of a reply")
        if not isinstance(record, kinds[key]):
            raise MalformedReply(f"{key} is a {type(record).__name__}, no {kinds[key].__name__}")
    for key in wanted:
        if key not in content:
            raise MalformedReply(f"it has no {wanted[key].__name__} called {key}")


def _check_train_metrics(metrics: Any, rules: ReplyRules) -> int:
    """The number of examples."""
    for name in (NUM_EXAMPLES, TRAIN_LOSS):
        if name not in metrics:
            raise MalformedReply(f"the metrics have no {name}")
    if len(metrics) > MOST_METRICS:
        raise MalformedReply(f"{len(metrics)} metrics are more than {MOST_METRICS}")
    for name, value in metrics.items():
        if name == NUM_EXAMPLES:
            continue
        if name in (TRAIN_LOSS, SKIPPED_STEPS):
            number(name, value, 0.0)
            continue
        if not is_measurement(name, rules):
            raise MalformedReply(f"no client reports a metric {shown(name)}")
        if value != math.inf:  # the ε of an accountant without noise
            number(f"metric {name}", value, -LARGEST)
    return whole(NUM_EXAMPLES, metrics[NUM_EXAMPLES], 1, rules.most_examples)


def is_measurement(name: str, rules: ReplyRules) -> bool:
    """Whether a metric of this name can be of a defense that runs."""
    known = len(name) <= LONGEST_NAME and METRIC_NAME.fullmatch(name) and ".." not in name
    return bool(known) and any(name.startswith(f"{defense}_") for defense in rules.defenses)


def _check_partition(claimed: object, client: int | None) -> None:
    whole("partition-id", claimed, 0, 2**63 - 1)
    if client is not None and claimed != client:
        raise MalformedReply(f"it says that it comes from partition {claimed}, and came from {client}")


def _check_claim(examples: int, client: int | None, rules: ReplyRules) -> None:
    """A weight in the mean that the client's own pictures do not give it."""
    sizes = rules.partition_sizes
    if sizes is not None and client is not None and client < len(sizes) and examples > sizes[client]:
        raise MalformedReply(f"{NUM_EXAMPLES} is {examples}, where client {client} holds {sizes[client]}")


def _check_withheld(withheld: dict[str, Any], rules: ReplyRules) -> None:
    """By name what is withheld: parameters, and roles that a defense took from the model."""
    for name, by in withheld.items():
        if len(name) > LONGEST_NAME or not TENSOR_NAME.fullmatch(name):
            raise MalformedReply(f"withheld names {shown(name)}, which is no tensor's name")
        if by not in rules.defenses:
            raise MalformedReply(f"{name} is withheld by {shown(by)}, which is none of the defenses that run")


def _check_names(arrays: Any, buffers: object, withheld: frozenset[str], rules: ReplyRules) -> None:
    if not isinstance(buffers, list) or len(buffers) > len(rules.buffers):
        raise MalformedReply(f"its buffers are {shown(buffers)}, where the model has {len(rules.buffers)}")
    for name in arrays:
        if name not in rules.trained and name not in rules.buffers:
            raise MalformedReply(f"tensor {shown(name)} is none that clients share")
    sent = {name for name in arrays if name in rules.buffers}
    if len(buffers) != len(sent) or set(buffers) != sent:
        odd = next((name for name in {*buffers, *sent} if buffers.count(name) != (name in sent)), None)
        raise MalformedReply(f"{shown(odd)} must be once among its buffers and its tensors, or in neither")
    both = withheld.intersection(arrays)
    if both:
        raise MalformedReply(f"tensor {min(both)} is there, and is said to be withheld")
    missing = rules.trained - withheld - set(arrays)
    if missing:
        raise MalformedReply(f"tensor {min(missing)} is missing, and no defense is said to withhold it")


def _check_names_of_block(names: tuple[str, ...], withheld: frozenset[str], rules: ReplyRules) -> None:
    if not _are_usual(names, withheld, rules.trained):
        _check_names(names, [], withheld, rules)


@lru_cache(maxsize=64)
def _are_usual(names: tuple[str, ...], withheld: frozenset[str], trained: frozenset[str]) -> bool:
    """Whether they are just the parameters that travel: then `_check_names` finds no fault."""
    return len(names) == len(set(names)) and withheld.isdisjoint(names) and set(names) == trained - withheld


def _check_protocol(text: object, examples: int, rules: ReplyRules) -> tuple[int, int]:
    """Steps, and images of one."""
    known = rules.kind, rules.batch_size, rules.trained
    if isinstance(text, str) and len(text) <= LONGEST_KEPT:
        return _checked_protocol(text, examples, *known)
    return _checked_protocol.__wrapped__(text, examples, *known)


@lru_cache(maxsize=64)
def _checked_protocol(
    text: object, examples: int, kind: Kind, batch_size: int | None, trained: frozenset[str]
) -> tuple[int, int]:
    """Of what the check depends on: most clients of a run have the same."""
    values = parsed("protocol", text)
    check_keys("the protocol", values, [field.name for field in fields(LocalProtocol)])
    gradient = kind == "gradient"
    most = min(examples, LARGEST_BATCH if batch_size is None else batch_size)
    batch = whole("the protocol's batch_size", values["batch_size"], 1, most)
    if gradient and batch != examples:
        raise MalformedReply(f"{NUM_EXAMPLES} is {examples}, for a gradient of {batch}")
    steps = whole("the protocol's steps", values["steps"], 1, 1 if gradient else MOST_STEPS)
    lrs, betas, optimizer = values["lrs"], values["betas"], values["optimizer"]
    if not isinstance(lrs, list) or len(lrs) != (0 if gradient else steps):
        raise MalformedReply(f"the protocol's lrs are {shown(lrs)}, for {steps} steps of a {kind}")
    if not isinstance(betas, list) or len(betas) != 2:
        raise MalformedReply(f"the protocol's betas are {shown(betas)}, no two numbers")
    for rate in lrs:
        number("a learning rate of the protocol", rate, 0.0)
    for beta in betas:
        number("a beta of the protocol", beta, 0.0, 1.0)
    for name in ("momentum", "dampening", "eps", "weight_decay", "proximal_mu", "label_smoothing"):
        number(f"the protocol's {name}", values[name], 0.0)
    if values["max_grad_norm"] is not None:
        number("the protocol's max_grad_norm", values["max_grad_norm"], 0.0)
    if values["micro_batch_size"] is not None:
        whole("the protocol's micro_batch_size", values["micro_batch_size"], 1, LARGEST_BATCH)
    apart = values["undecayed"]
    if not isinstance(apart, list) or not all(isinstance(one, str) and one in trained for one in apart):
        raise MalformedReply(f"the protocol's undecayed are {shown(apart)}, no names of what clients train")
    for name in ("nesterov", "amsgrad", "training_mode"):
        if not isinstance(values[name], bool):
            raise MalformedReply(f"the protocol's {name} is {shown(values[name])}, neither true nor false")
    if values["precision"] not in get_args(Precision):
        raise MalformedReply(f"the protocol's precision is {shown(values['precision'])}, none that there is")
    if not isinstance(optimizer, str) or len(optimizer) > LONGEST_NAME or not TENSOR_NAME.fullmatch(optimizer):
        raise MalformedReply(f"the protocol's optimizer is {shown(optimizer)}, no name of one")
    return steps, batch


def _controls(letter: str) -> bool:
    """Whether it breaks lines or encodings; spaces and marks of other scripts are in many a picture's name."""
    return unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")


def _check_audit(record: Any, image_shape: tuple[int, int, int], most: int) -> None:
    """Pictures, labels and names; `most` is how many the client's steps can have read."""
    check_keys("the audit record", record, AUDIT_KEYS)
    labels, ids = record["labels"], record["ids"]
    if not isinstance(labels, list) or not 1 <= len(labels) <= most:
        raise MalformedReply(f"the audit record's labels are {shown(labels)}, for at most {most} pictures")
    if not isinstance(ids, list) or len(ids) != len(labels):
        raise MalformedReply(f"the audit record's ids are {shown(ids)}, for {len(labels)} labels")
    for label in labels:
        whole("a label of the audit record", label, 0, 2**31 - 1)
    for name in ids:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_PATH or any(map(_controls, name)):
            raise MalformedReply(f"the audit record names a picture {shown(name)}")
    shape = (len(labels), *image_shape)
    for key in ("images", "private"):
        data = record[key]
        found = (decoded(data, dtype, shape) for dtype in IMAGE_DTYPES) if isinstance(data, bytes) else ()
        values = next((values for values in found if values is not None), None)
        if values is None:
            raise MalformedReply(f"the audit record's {key} are {shown(data)}, no pictures of shape {shape}")
        check_values(f"the audit record's {key}", values)
