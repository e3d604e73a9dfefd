"""What an honest client sends passes; whatever else comes is refused by name, before anything is decoded."""

import io
import json
import math
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.wire.records import ARRAYS, AUDIT, METRICS, NUM_EXAMPLES, UPDATE, to_array, to_arrays
from fedsim.wire.reply.checks import ReplyRules, check_evaluate_reply, check_train_reply
from fedsim.wire.reply.values import MalformedReply
from fedsim.wire.tensor_records import TensorArray
from tests.fuzz.federation import KINDS, honest, make_net, make_rules, start

WEIGHT = "head.weight"


def check(content, kind="delta", client=0, **changed):
    check_train_reply(content, start(), replace(make_rules(kind), **changed), client)


def reason(content, kind="delta", client=0, **changed):
    with pytest.raises(MalformedReply) as caught:
        check(content, kind, client, **changed)
    said = str(caught.value)
    assert said.isprintable()
    return said


def values(*shape, value=0.5, dtype="float32"):
    return Array(np.full(shape, value, dtype=dtype))


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wire", [True, False])
@pytest.mark.parametrize("audited", [True, False])
def test_an_honest_reply_passes(kind, wire, audited):
    check(honest(kind, 1, audited, wire), kind, 1)


def test_pictures_may_have_any_name_of_one_line():
    content = honest("delta", 1)
    content[AUDIT]["ids"] = ["cat/3.04.05\u202fPM.png", "\u5199\u771f\u3000\u00a0\u00ad\U0001fae8.jpg"]
    check(content, "delta", 1)


def test_skipped_steps_are_a_metric_that_clients_report():
    content = honest("delta", 1)
    content[METRICS]["skipped_steps"] = 2.0
    check(content, "delta", 1)


def test_the_rules_travel_to_workers():
    rules = make_rules("delta")
    assert pickle.loads(pickle.dumps(rules)) == rules
    assert rules.trained == {"scale", "hidden.weight", "hidden.bias", "norm.weight", "norm.bias", WEIGHT, "head.bias"}
    assert rules.buffers == {"norm.running_mean", "norm.running_var"}


def test_a_client_whose_whole_update_is_withheld_passes():
    content = honest("gradient", 0)
    content[ARRAYS] = ArrayRecord()
    withheld = dict.fromkeys(make_rules("gradient").trained, "local_dp")
    content[UPDATE]["buffers"], content[UPDATE]["withheld"] = [], json.dumps(withheld)
    check(content, "gradient")


def test_an_accountant_without_noise_may_report_infinity():
    content = honest("delta", 0)
    content[METRICS]["local_dp_epsilon"] = math.inf
    check(content)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (values(2, 3, value=np.nan), "not finite"),
        (values(2, 3, value=-np.inf), "not finite"),
        (values(2, 3, value=1e13), "values up to 1.0e+13"),
        (values(3, 2), "shape (3, 2)"),
        (values(2, 3, dtype="float64"), "of 'float64', the model's of float32"),
        (values(2, 3, dtype="float16"), "of 'float16'"),
        (values(2, 3, dtype="int64"), "of 'int64'"),
        (Array("float32", (10**30, 3), "numpy.ndarray", b""), "shape (a number of 100 bits, 3)"),
        (Array("float32", (2, 3), "pickle", pickle.dumps([1])), "serialised as 'pickle'"),
        (Array("float32", (2, 3), "numpy.ndarray", b""), "0 bytes are no plain array"),
        (Array("float32", (2, 3), "numpy.ndarray", values(2, 3).data + b"\0"), "153 bytes"),
        (Array("float32", (2, 3), "numpy.ndarray", values(2, 3).data[:-1]), "151 bytes"),
        (Array("float32", (2, 3), "numpy.ndarray", saved(np.array([{}], dtype=object))), "no plain array"),
        (Array("float32", (2, 3), "numpy.ndarray", values(3, 2).data), "no plain array"),
        (Array("float32", (2, 3), "numpy.ndarray", saved(np.ones((2, 3), "f4", order="F"))), "no plain array"),
        (TensorArray(np.ones((2, 3))), "of 'float64'"),
        (TensorArray(np.ones((3, 2), dtype=np.float32)), "shape (3, 2)"),
        (to_array(torch.full((2, 3), torch.nan)), "not finite"),
    ],
)
def test_arrays_that_are_not_the_models(array, words):
    content = honest("delta", 0)
    content[ARRAYS][WEIGHT] = array
    found = reason(content)
    assert words in found
    assert WEIGHT in found


def test_large_values_within_the_limit_pass():
    content = honest("delta", 0)
    content[ARRAYS][WEIGHT] = values(2, 3, value=1e12)
    check(content)


def test_a_header_that_asks_for_more_memory_than_there_is_is_never_believed(monkeypatch):
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("decoded before it was checked"))
    content = honest("delta", 0)
    data = values(2, 3).data.replace(b"(2, 3)", b"(2, 3999999999999)", 1)
    content[ARRAYS][WEIGHT] = Array("float32", (2, 3), "numpy.ndarray", data)
    assert "no plain array" in reason(content)


def _set(record, key, value):
    def change(content):
        content[record].__dict__["_data"][key] = value

    return change


def _protocol(**changed):
    def change(content):
        content[UPDATE]["protocol"] = json.dumps({**json.loads(content[UPDATE]["protocol"]), **changed})

    return change


def _audit(**changed):
    def change(content):
        content[AUDIT].update(changed)

    return change


CONTENTS = {
    "no arrays": (lambda c: c.pop(ARRAYS), "no ArrayRecord called arrays"),
    "no metrics": (lambda c: c.pop(METRICS), "no MetricRecord called metrics"),
    "no update": (lambda c: c.pop(UPDATE), "no ConfigRecord called fedsim.update"),
    "two arrays": (lambda c: c.update({"more": ArrayRecord()}), "a ArrayRecord called 'more'"),
    "two metrics": (lambda c: c.update({"more": MetricRecord()}), "a MetricRecord called 'more'"),
    "a forged sum": (lambda c: c.update({"fedsim.sum": ArrayRecord()}), "called 'fedsim.sum'"),
    "another type": (lambda c: c.update({METRICS: ConfigRecord()}), "metrics is a ConfigRecord"),
    "a missing tensor": (lambda c: c[ARRAYS].pop(WEIGHT), f"{WEIGHT} is missing"),
    "an additional tensor": (lambda c: c[ARRAYS].update({"../x": values(1)}), "'../x' is none that clients share"),
    "a frozen tensor": (lambda c: c[ARRAYS].update({"frozen": values(2)}), "'frozen' is none that clients share"),
    "a count": (lambda c: c[ARRAYS].update({"norm.num_batches_tracked": values()}), "none that clients share"),
    "a parameter as buffer": (lambda c: c[UPDATE]["buffers"].__setitem__(0, WEIGHT), "among its buffers"),
    "a buffer twice": (lambda c: c[UPDATE].update({"buffers": ["norm.running_mean"] * 2}), "among its buffers"),
    "a buffer unsaid": (lambda c: c[UPDATE].update({"buffers": []}), "among its buffers"),
    "no list of buffers": (_set(UPDATE, "buffers", "norm"), "its buffers are 'norm'"),
    "no examples": (_set(METRICS, NUM_EXAMPLES, 0), "num-examples is 0, no whole number from 1 to 1000"),
    "negative examples": (_set(METRICS, NUM_EXAMPLES, -3), "num-examples is -3"),
    "too many examples": (_set(METRICS, NUM_EXAMPLES, 1001), "num-examples is 1001"),
    "absurd examples": (_set(METRICS, NUM_EXAMPLES, 10**5000), "num-examples is a number of 16610 bits"),
    "a flag of examples": (_set(METRICS, NUM_EXAMPLES, True), "num-examples is True"),
    "part of an example": (_set(METRICS, NUM_EXAMPLES, 2.5), "num-examples is 2.5"),
    "NaN examples": (_set(METRICS, NUM_EXAMPLES, math.nan), "num-examples is nan"),
    "a list of examples": (_set(METRICS, NUM_EXAMPLES, [1]), "num-examples is 1 entries"),
    "unsaid examples": (lambda c: c[METRICS].pop(NUM_EXAMPLES), "no num-examples"),
    "an unsaid loss": (lambda c: c[METRICS].pop("train_loss"), "no train_loss"),
    "a NaN loss": (_set(METRICS, "train_loss", math.nan), "train_loss is nan"),
    "a negative loss": (_set(METRICS, "train_loss", -1.0), "train_loss is -1.0"),
    "less than no skipped steps": (_set(METRICS, "skipped_steps", -1.0), "skipped_steps is -1.0"),
    "a NaN metric": (_set(METRICS, "local_dp_epsilon", math.nan), "local_dp_epsilon is nan"),
    "a huge metric": (_set(METRICS, "local_dp_epsilon", 10**400), "a number of 1329 bits"),
    "the server's metric": (_set(METRICS, "accuracy", 1.0), "no client reports a metric 'accuracy'"),
    "a metric of none": (_set(METRICS, "mjp_mask_ratio", 1.0), "no client reports a metric 'mjp_mask_ratio'"),
    "a metric with a path": (_set(METRICS, "local_dp_../../x", 1.0), "no client reports a metric"),
    "a metric with HTML": (_set(METRICS, "local_dp_<b>", 1.0), r"'local_dp_\x3cb\x3e'"),
    "a metric with a line": (_set(METRICS, "local_dp_\nINFO", 1.0), r"'local_dp_\nINFO'"),
    "a long metric": (_set(METRICS, "local_dp_" + "x" * 300, 1.0), "(309 characters)"),
    "300 metrics": (lambda c: c[METRICS].update({f"local_dp_{i}": 1.0 for i in range(300)}), "more than 200"),
    "another kind": (_set(UPDATE, "kind", "weights"), "its kind is 'weights', where clients share delta"),
    "no kind": (lambda c: c[UPDATE].pop("kind"), "the update has no kind"),
    "an unknown key": (_set(UPDATE, "run_dir", "/"), "a key 'run_dir' that no client sends"),
    "another's partition": (_set(UPDATE, "partition-id", 1), "from partition 1, and came from 0"),
    "a negative partition": (_set(UPDATE, "partition-id", -1), "partition-id is -1"),
    "a word for a partition": (_set(UPDATE, "partition-id", "0"), "partition-id is '0'"),
    "withheld by nobody": (_set(UPDATE, "withheld", '{"scale": "mjp"}'), "none of the defenses that run"),
    "withheld and there": (_set(UPDATE, "withheld", '{"scale": "fixed_pe"}'), "tensor scale is there, and is said"),
    "withheld by a list": (_set(UPDATE, "withheld", '{"scale": []}'), "by 0 entries"),
    "withheld with a path": (_set(UPDATE, "withheld", '{"../x": "fixed_pe"}'), "no tensor's name"),
    "withheld no JSON": (_set(UPDATE, "withheld", "{"), "no JSON"),
    "withheld a list": (_set(UPDATE, "withheld", "[]"), "no JSON object"),
    "withheld too deep": (_set(UPDATE, "withheld", "[" * 10**5), "no JSON"),
    "withheld a number": (_set(UPDATE, "withheld", 3), "withheld is 3"),
    "a long JSON": (_set(UPDATE, "withheld", " " * (2**24 + 1)), "no JSON of at most"),
    "no protocol": (_set(UPDATE, "protocol", "{}"), "the protocol has no "),
    "a strange protocol": (_protocol(run="x"), "a key 'run' that no client sends"),
    "a huge batch": (_protocol(batch_size=10**9), "batch_size is 1000000000"),
    "an empty batch": (_protocol(batch_size=0), "batch_size is 0"),
    "negative steps": (_protocol(steps=-1), "steps is -1"),
    "more steps than rates": (_protocol(steps=10**4), "lrs are 2 entries, for 10000 steps"),
    "steps that would take days to undo": (_protocol(steps=2**16 + 1), "steps is 65537"),
    "a NaN rate": (_protocol(lrs=[0.1, math.nan]), "a learning rate of the protocol is nan"),
    "a word for a rate": (_protocol(lrs=[0.1, "x"]), "a learning rate of the protocol is 'x'"),
    "a precision of its own": (_protocol(precision="half"), "precision is 'half'"),
    "a NaN norm": (_protocol(max_grad_norm=math.nan), "max_grad_norm is nan"),
    "half an image": (_protocol(micro_batch_size=0.5), "micro_batch_size is 0.5"),
    "an unknown name": (_protocol(undecayed=["nobody"]), "undecayed are 1 entries"),
    "no name": (_protocol(undecayed=[["a"]]), "undecayed are 1 entries"),
    "a word for names": (_protocol(undecayed="a"), "undecayed are 'a'"),
    "one beta": (_protocol(betas=[0.9]), "betas are 1 entries"),
    "a beta above 1": (_protocol(betas=[0.9, 2]), "a beta of the protocol is 2"),
    "infinite momentum": (_protocol(momentum=math.inf), "momentum is inf"),
    "a word for a flag": (_protocol(nesterov="yes"), "nesterov is 'yes'"),
    "HTML for an optimizer": (_protocol(optimizer="<b>"), r"optimizer is '\x3cb\x3e'"),
    "an audit record cut short": (lambda c: c[AUDIT].pop("ids"), "the audit record has no ids"),
    "more labels than pictures": (_audit(labels=[0] * 3), "ids are 2 entries, for 3 labels"),
    "more pictures than steps": (_audit(labels=[0] * 9), "at most 4 pictures"),
    "labels that are words": (_audit(labels=["a", "b"]), "a label of the audit record is 'a'"),
    "pictures in bytes of none": (_audit(images=b"x"), "images are 1 bytes"),
    "pictures that are text": (_audit(private="x"), "private are 'x'"),
    "pictures of one channel": (_audit(images=saved(np.zeros((2, 1, 4, 4), "f4"))), "no pictures of shape"),
    "pictures that are not finite": (_audit(images=saved(np.full((2, 3, 4, 4), np.nan, "f4"))), "not finite"),
    "pickled pictures": (_audit(images=saved(np.array([{}], dtype=object))), "no pictures"),
    "a name of two lines": (_audit(ids=["a\nb", "c"]), r"names a picture 'a\nb'"),
    "a name half of a character": (_audit(ids=["\ud800", "c"]), r"'\ud800'"),
}


@pytest.mark.parametrize("case", CONTENTS, ids=str)
def test_what_no_honest_client_sends(case):
    change, words = CONTENTS[case]
    content = honest("delta", 0)
    change(content)
    assert words in reason(content)


def test_an_audit_record_that_nobody_asked_for():
    assert "called 'fedsim.audit'" in reason(honest("delta", 0), image_shape=None)


def test_a_gradient_is_of_no_step():
    content = honest("gradient", 0)
    _protocol(lrs=[0.1])(content)
    assert "for 1 steps of a gradient" in reason(content, "gradient")


def test_where_clients_are_not_numbered_any_may_answer():
    content = honest("delta", 2)
    check(content, client=None)


def test_half_precision_is_compared_as_wide_as_it_must_be():
    net = deepcopy(make_net()).half()
    state = {name: tensor for name, tensor in net.state_dict().items() if name in ("scale", WEIGHT)}
    rules = ReplyRules("gradient", frozenset(state))
    content = honest("gradient", 0, audited=False)
    content[ARRAYS], content[UPDATE]["buffers"] = to_arrays({**state, WEIGHT: torch.full((2, 3), 6e4).half()}), []
    content[UPDATE]["withheld"] = "{}"
    content[METRICS] = MetricRecord({NUM_EXAMPLES: 2, "train_loss": 0.5})
    check_train_reply(content, to_arrays(state), rules)
    content[ARRAYS] = to_arrays({**state, WEIGHT: torch.full((2, 3), torch.inf).half()})
    with pytest.raises(MalformedReply, match="not finite"):
        check_train_reply(content, to_arrays(state), rules)


EVALUATED = {NUM_EXAMPLES: 5, "loss": 0.3, "accuracy": 0.9}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"loss": math.nan}, "loss is nan"),
        ({"loss": -0.1}, "loss is -0.1"),
        ({"accuracy": 1.5}, "accuracy is 1.5, no number from 0 to 1"),
        ({"accuracy": [0.5]}, "accuracy is 1 entries"),
        ({NUM_EXAMPLES: 0}, "num-examples is 0"),
        ({"more": 1.0}, "a key 'more' that no client sends"),
    ],
)
def test_evaluation(changed, words):
    rules = make_rules("delta")
    check_evaluate_reply(RecordDict({METRICS: MetricRecord(EVALUATED)}), rules)
    with pytest.raises(MalformedReply) as caught:
        check_evaluate_reply(RecordDict({METRICS: MetricRecord({**EVALUATED, **changed})}), rules)
    assert words in str(caught.value)
    with pytest.raises(MalformedReply, match="no MetricRecord"):
        check_evaluate_reply(RecordDict(), rules)


def changed_protocol(kind, examples=None, **values):
    content = honest(kind, 0)
    protocol = json.loads(content[UPDATE]["protocol"])
    content[UPDATE]["protocol"] = json.dumps(protocol | values)
    if examples is not None:
        content[METRICS][NUM_EXAMPLES] = examples
    return content


def test_a_gradient_weighs_what_is_in_it():
    assert "is 32, for a gradient of 2" in reason(changed_protocol("gradient", examples=32), "gradient")
    assert "protocol's steps is 2" in reason(changed_protocol("gradient", steps=2), "gradient")
    check(changed_protocol("delta", examples=32))


def test_no_client_claims_more_than_it_holds():
    content = changed_protocol("delta", examples=32)
    check(content, partition_sizes=(32, 1, 1))
    assert "is 32, where client 0 holds 31" in reason(content, partition_sizes=(31, 500, 500))


def test_where_nothing_is_known_of_a_client_its_sizes_have_a_bound():
    unknown = {"batch_size": None, "most_examples": ReplyRules("delta", frozenset()).most_examples}
    check(changed_protocol("delta", examples=10**6, batch_size=4096), **unknown)
    assert "batch_size is 1000000" in reason(changed_protocol("delta", examples=10**6, batch_size=10**6), **unknown)
    assert "num-examples is 1000000000" in reason(changed_protocol("delta", examples=10**9), **unknown)
