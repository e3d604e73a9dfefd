"""Clients that send what no honest client sends; Ray workers import it from the checkout."""

import json
from functools import partial

import numpy as np
from flwr.app import Array, ConfigRecord, Message
from flwr.clientapp import ClientApp

from clients.app import build_client_app
from fedsim.wire.records import ARRAYS, METRICS, NUM_EXAMPLES, UPDATE
from fedsim.wire.tensor_records import TensorArray

EVIL = "<script>alert(1)</script>\n2026-11-01 00:00:00,000 INFO server: all is well"
NAME = "head.bias"


def _values(values):
    return lambda content: content[ARRAYS].__setitem__(NAME, TensorArray(values(content[ARRAYS][NAME].values)))


def _number(record, name, value):
    return lambda content: content[record].__setitem__(name, value)


def _rename(new, content):
    content[ARRAYS][new] = content[ARRAYS].pop(NAME)


def _add(new, content):
    content[ARRAYS][new] = content[ARRAYS][NAME]


def _lie_about_bytes(content):
    content[ARRAYS][NAME] = Array("float32", (10,), "numpy.ndarray", b"\x80\x04cos\nsystem\n")


def _withhold(content):
    del content[ARRAYS][NAME]
    content[UPDATE]["withheld"] = json.dumps({NAME: "local_dp"})


TRAIN = {
    "nan": (_values(lambda v: v * np.nan), "has values that are not finite"),
    "infinite": (_values(lambda v: v + np.inf), "has values that are not finite"),
    "enormous": (_values(lambda v: v + np.float32(1e20)), "has values up to 1.0e+20, more than 1e+12"),
    "shape": (_values(lambda v: v.reshape(1, -1)), "has the shape (1, 10), the model's has (10)"),
    "huge": (_values(lambda v: np.zeros(10**6, np.float32)), "has the shape (1000000), the model's has (10)"),
    "dtype": (_values(lambda v: v.astype(np.float64)), "is of 'float64', the model's of float32"),
    "bytes": (_lie_about_bytes, "13 bytes are no plain array of float32 (10)"),
    "missing": (lambda content: content[ARRAYS].pop(NAME), "tensor head.bias is missing"),
    "additional": (partial(_add, "more"), "tensor 'more' is none that clients share"),
    "path": (partial(_rename, "../../../etc/passwd"), "tensor '../../../etc/passwd' is none that clients share"),
    "html": (partial(_add, EVIL), r"tensor '\x3cscript\x3ealert(1)\x3c/script\x3e\n2026"),
    "record": (lambda content: content.__setitem__("fedsim.sum", content[ARRAYS]), "called 'fedsim.sum' is no part"),
    "negative": (_number(METRICS, NUM_EXAMPLES, -3), "num-examples is -3, no whole number"),
    "absurd": (_number(METRICS, NUM_EXAMPLES, 10**8), "num-examples is 100000000, no whole number"),
    "metric": (_number(METRICS, EVIL, 1.0), "no client reports a metric"),
    "kind": (_number(UPDATE, "kind", "sums"), "its kind is 'sums'"),
    "partition": (_number(UPDATE, "partition-id", 0), "it says that it comes from partition 0, and came from"),
    "foreign": (_number(METRICS, "local_dp_more", 1.0), "metrics are not those of most clients: 'local_dp_more' is"),
    "fewer": (lambda content: content[METRICS].pop("local_dp_epsilon"), "'local_dp_epsilon' is missing"),
    "context": (lambda content: content.__setitem__("more", ConfigRecord()), "'more' is no part of a reply"),
}
"""What a client does to its train reply, and words of the reason for which it is refused."""
GRADIENT = {"withholding": (_withhold, "its tensors are not those of most clients: 'head.bias' is missing")}
EVALUATE = {"loss": (_number(METRICS, "loss", float("nan")), "loss is nan, no number")}


class Hostile(ClientApp):
    """Partition ids in `deeds` spoil their replies, each in one way; with `raises` they fail in place of it."""

    def __init__(self, app, deeds, raises):
        super().__init__()
        self._app, self._deeds, self._raises = app, deeds, raises

    def __call__(self, message, context):
        deed = self._deeds.get(context.node_config["partition-id"])
        at = {"train": {**TRAIN, **GRADIENT, "words": None, "forged": None, "nothing": None}, "evaluate": EVALUATE}
        if deed not in at[message.metadata.message_type]:
            return self._app(message, context)
        if self._raises or deed == "words":
            raise RuntimeError(EVIL)
        reply = self._app(message, context)
        if deed == "nothing":
            return None
        if deed == "forged":  # in place of the client before it
            reply.metadata.__dict__["_reply_to_message_id"] = str(int(message.metadata.message_id) - 1)
            return reply
        at[message.metadata.message_type][deed][0](reply.content)
        return Message(reply.content, reply_to=message)


def build_hostile_app(deeds, raises, config, data=None):
    return Hostile(build_client_app(config, data), deeds, raises)
