"""A malformed reply is one client's failure: the round is that of the others, and nothing it held gets any further."""

import json
import re
from logging import getLogger
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hydra.utils import instantiate

from experiments.cli.logs import log_to
from fedsim.report.render import build_report
from fedsim.settings.composition import image_side
from fedsim.simulation import InlineGrid, partition_of
from fedsim.storage.run_folder import RunFolder
from fedsim.wire.records import (
    ARRAYS,
    AUDIT,
    METRICS,
    NUM_EXAMPLES,
    UPDATE,
    from_array,
    from_arrays,
    from_reply,
    to_arrays,
)
from fedsim.wire.reply.checks import ReplyRules
from server.aggregation import complete
from server.rounds import Rounds, WorkerSums
from server.screening import Screening, plain
from tests.fuzz.federation import KINDS, Server, as_reply, honest, make_rules, start
from tests.support.federation import settings

FOLDER = Path(__file__).resolve().parents[2] / "conf" / "strategy"
STRATEGIES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "qfedavg")
"""Flower's QFedAvg multiplies in place: a count of batches, as this model has one, is more than it can take."""
EVIL = "<script>alert(1)</script>\n2026-11-01 00:00:00,000 INFO server: all is well"


@pytest.fixture
def aggregate():
    """`aggregate(kind, contents)`: arrays, metrics and failures of a round with one reply for each of the contents."""

    def call(kind, contents, inner=None):
        server = Server(kind, lambda observation, truth: None, inner=inner)
        arrays, metrics = server.round([as_reply(content, client) for client, content in contents.items()])
        return arrays, metrics, server.failures

    return call


def spoilt(kind, client):
    content = honest(kind, client)
    content[ARRAYS]["head.bias"] = Array(np.full(2, np.nan, dtype=np.float32))
    return content


@pytest.mark.parametrize("kind", KINDS)
def test_the_round_is_that_of_the_others(aggregate, same_bits, kind):
    alone, metrics, failures = aggregate(kind, {0: honest(kind, 0), 2: honest(kind, 2)})
    found, same_metrics, with_failure = aggregate(kind, {0: honest(kind, 0), 1: spoilt(kind, 1), 2: honest(kind, 2)})
    assert failures == {}
    assert with_failure == {1: "malformed reply: tensor head.bias has values that are not finite"}
    assert same_bits(found, alone)
    assert same_metrics == metrics


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda path: path.stem)
def test_every_strategy_goes_on_and_stays_finite(aggregate, path):
    config = settings("config", f"strategy={path.stem}")["strategy"]
    inner = instantiate(config, _recursive_=False, _convert_="all")
    kind = "gradient" if path.stem == "fedsgd" else "weights"
    contents = {client: honest(kind, client) for client in range(8)}
    contents[3] = spoilt(kind, 3)
    for name, array in contents[5][ARRAYS].items():
        contents[5][ARRAYS][name] = Array(np.full(array.shape, 1e12, dtype=np.float32))
    contents[5][METRICS]["train_loss"] = 1e12
    with np.errstate(all="ignore"):
        arrays, _, failures = aggregate(kind, contents, inner)
    assert list(failures) == [3]
    assert all(tensor.isfinite().all() for tensor in from_arrays(arrays).values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_passes_and_cannot_be_read_is_refused(aggregate, same_bits, kind, monkeypatch):
    def read(content, server_round):
        if content[METRICS]["train_loss"] == 0.5:
            raise TypeError(EVIL)
        return from_reply(content, server_round)

    monkeypatch.setattr("fedsim.wire.reply.checks.from_reply", read)
    odd = honest(kind, 1)
    odd[METRICS]["train_loss"] = 0.5
    alone, _, _ = aggregate(kind, {0: honest(kind, 0), 2: honest(kind, 2)})
    found, _, failures = aggregate(kind, {0: honest(kind, 0), 1: odd, 2: honest(kind, 2)})
    assert list(failures) == [1]
    assert failures[1].startswith(r"malformed reply: it cannot be read: '\x3cscript")
    assert same_bits(found, alone)


def test_where_nobody_is_left_the_model_is_unchanged(aggregate):
    arrays, _, failures = aggregate("delta", {0: spoilt("delta", 0)})
    assert arrays is None
    assert failures[None] == "nothing was aggregated: the model is unchanged"


def _without_metric(content):
    del content[METRICS]["local_dp_epsilon"]


def _with_metric(content):
    content[METRICS]["local_dp_more"] = 1.0


def _withholding(content):
    del content[ARRAYS]["head.bias"]
    content[UPDATE]["withheld"] = json.dumps({"head.bias": "fixed_pe"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_metric, "its metrics are not those of most clients: 'local_dp_epsilon' is missing"),
        (_with_metric, "its metrics are not those of most clients: 'local_dp_more' is additional"),
        (_withholding, "its tensors are not those of most clients: 'head.bias' is missing"),
    ],
)
def test_who_differs_from_most_clients_is_left_out(aggregate, same_bits, change, words):
    contents = {client: honest("gradient", client) for client in range(3)}
    alone, _, _ = aggregate("gradient", {client: honest("gradient", client) for client in (1, 2)})
    change(contents[0])
    found, _, failures = aggregate("gradient", contents)
    assert failures == {0: f"malformed reply: {words}"}
    assert same_bits(found, alone)


def test_of_two_that_differ_the_fuller_stays(aggregate):
    contents = {0: honest("gradient", 0), 1: honest("gradient", 1)}
    _withholding(contents[0])
    _, _, failures = aggregate("gradient", contents)
    assert list(failures) == [0]


def test_of_two_the_one_without_the_defense_is_left_out(aggregate, same_bits):
    alone, _, _ = aggregate("delta", {1: honest("delta", 1)})
    contents = {0: honest("delta", 0), 1: honest("delta", 1)}
    _without_metric(contents[0])
    found, metrics, failures = aggregate("delta", contents)
    assert list(failures) == [0]
    assert same_bits(found, alone)
    assert metrics["local_dp_epsilon"] == np.inf, "of what the other spent nothing is known"


def test_of_two_one_that_counts_a_budget_which_the_run_does_not_is_left_out(aggregate):
    contents = {client: honest("delta", client) for client in range(2)}
    contents[1][METRICS]["fixed_pe_epsilon"] = 1.0
    _, metrics, failures = aggregate("delta", contents)
    assert list(failures) == [1]
    assert "fixed_pe_epsilon" not in metrics
    for content in contents.values():
        _without_metric(content)
    _, metrics, failures = aggregate("delta", contents)
    assert (list(failures), metrics.keys() & {"fixed_pe_epsilon"}) == ([1], set())


def test_a_budget_that_accepted_clients_no_longer_report_is_not_known_any_more():
    server = Server("delta", lambda observation, truth: None)
    server.round([as_reply(honest("delta", client), client) for client in range(3)])
    contents = [honest("delta", client) for client in range(3)]
    for content in contents[:2]:
        _without_metric(content)
    _, metrics = server.round([as_reply(content, client) for client, content in enumerate(contents)])
    assert metrics["local_dp_epsilon"] == np.inf


def test_of_three_two_without_the_defense_make_a_model_of_which_no_budget_is_told(aggregate):
    contents = {client: honest("delta", client) for client in range(3)}
    for client in range(2):
        _without_metric(contents[client])
    _, metrics, failures = aggregate("delta", contents)
    assert list(failures) == [2]
    assert metrics["local_dp_epsilon"] == np.inf


def test_of_refused_replies_alone_what_their_defenses_spent_is_told(aggregate):
    contents = {client: spoilt("delta", client) for client in range(2)}
    contents[1][METRICS].update({"local_dp_epsilon": 3.0, "<b>_epsilon": 9.0})
    _, metrics, failures = aggregate("delta", contents)
    assert metrics == {"clients": 0, "local_dp_epsilon": 3.0}
    assert list(failures) == [0, 1, None]


def test_what_a_refused_reply_spent_is_its_senders(caplog):
    """It says that it comes from client 1."""
    server = Server("delta", lambda observation, truth: None)
    for _ in range(2):
        liar = honest("delta", 1)
        liar[METRICS]["local_dp_epsilon"] = 1e9
        _, metrics = server.round([as_reply(liar, 0), as_reply(honest("delta", 1), 1)])
        assert metrics["local_dp_epsilon"] == 1e9
    assert "has forgotten" not in caplog.text


def test_silent_clients_are_no_others(aggregate):
    contents = {client: honest("gradient", client) for client in range(3)}
    for client in (0, 1):
        contents[client][ARRAYS], contents[client][UPDATE]["buffers"] = ArrayRecord(), []
        withheld = dict.fromkeys(make_rules("gradient").trained, "local_dp")
        contents[client][UPDATE]["withheld"] = json.dumps(withheld)
    _, _, failures = aggregate("gradient", contents)
    assert failures == {}


def test_deltas_may_lack_different_tensors(aggregate):
    contents = {client: honest("delta", client) for client in range(3)}
    _withholding(contents[0])
    arrays, _, failures = aggregate("delta", contents)
    assert failures == {}
    assert list(arrays) == list(start())


@pytest.mark.parametrize("kind", ["weights", "delta"])
def test_the_order_of_tensors_is_not_the_clients_to_choose(kind):
    """Some of Flower's strategies go by the place of a tensor."""
    content = honest(kind, 0)
    content[ARRAYS] = ArrayRecord(dict(reversed(start().items())))
    assert list(complete(as_reply(content, 0), start()).content[ARRAYS]) == list(start())


def test_evaluation_replies_are_checked_too():
    good = {NUM_EXAMPLES: 5, "loss": 0.3, "accuracy": 0.5}
    contents = [RecordDict({METRICS: MetricRecord(m)}) for m in (good, {**good, EVIL: 1.0}, {**good, "loss": np.inf})]
    screened = Screening(make_rules("delta")).evaluate(map(as_reply, contents, range(3)))
    assert [reply.has_error() for reply in screened] == [False, True, True]


def test_a_clients_own_words_are_one_line():
    said = as_reply(RecordDict(), 0)
    errors = [Error(2, f"ValueError: {EVIL}\x1b[31m\ud800{'x' * 9000}"), Error(2, "ValueError: no"), Error(0)]
    replies = [Message(error=error, metadata=said.metadata) for error in errors]
    screened = [reply.message for reply in Screening(make_rules("delta")).train(replies, start())]
    reasons = [reply.error.reason for reply in screened]
    assert reasons[0].startswith("ValueError: <script>alert(1)</script> 2026-11-01 00:00:00,000 INFO")
    assert reasons[0].isprintable()
    assert len(reasons[0]) == 500
    assert reasons[1:] == ["ValueError: no", "no reason given"]
    assert [reply.error.code for reply in screened] == [2, 2, 0]
    assert plain("a\r\n\tb\u2028c\0") == "a b c?"


@pytest.mark.parametrize("wire", [True, False])
@pytest.mark.parametrize("rules", [make_rules("delta"), None], ids=["checked", "taken as they are"])
def test_a_reply_is_read_where_it_lies_and_observed_as_a_copy(wire, rules):
    replies = [as_reply(honest("delta", client, wire=wire), client) for client in range(2)]
    read = Screening(rules, partition_of).train(replies, start(), 3)
    assert [(one.sent.client, one.sent.server_round) for one in read] == [(0, 3), (1, 3)]
    assert all(
        AUDIT not in reply.content and one.sent.truth is not None for one, reply in zip(read, replies, strict=True)
    )
    if not wire:
        assert read[0].sent.update.tensors["scale"].data_ptr() == replies[0].content[ARRAYS]["scale"].values.ctypes.data
    seen, content = [], honest("delta", 0, wire=wire)
    Server("delta", lambda *found: seen.append(found), guarded=rules is not None).round([as_reply(content, 0)])
    ((observation, truth),) = seen
    assert truth.ids == ("cat/1.png", "dog/2.png")
    for name, tensor in {**observation.update.tensors, **observation.update.buffers}.items():
        assert torch.equal(tensor, from_array(content[ARRAYS][name]))
        tensor.add_(1)  # the end of the process, were it the memory of a reply that a wire brought
        assert not torch.equal(tensor, from_array(content[ARRAYS][name]))


def test_an_update_that_was_summed_where_it_was_made_is_not_read():
    content = honest("delta", 0)
    del content[ARRAYS]
    (reply,) = Screening(make_rules("delta"), partition_of).train([as_reply(content, 0)], start(), checked=True)
    assert reply.sent is None
    assert not reply.message.has_error()


def test_no_node_is_another_partition():
    replies = [as_reply(honest("delta", partition), node) for node, partition in enumerate([0, 1, 0])]
    screened = Screening(make_rules("delta"), partition_of).train(replies, start())
    assert [reply.sent is None for reply in screened] == [False, False, True]
    assert "it says that it comes from partition 0, and came from 2" in screened[2].message.error.reason


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("summed", [True, False])
def test_sums_are_taken_from_a_grid_that_checked_what_is_in_them_alone(monkeypatch, checks, summed):
    content = honest("delta", 0)
    content["fedsim.sum"] = content.pop(ARRAYS)
    grid = InlineGrid(2, lambda: pytest.fail("no client is asked"))
    monkeypatch.setattr(type(grid), "checks_replies", checks)
    monkeypatch.setattr(grid, "send_and_receive", lambda messages, *, timeout=None: [as_reply(content, 0)])
    monkeypatch.setattr("server.rounds.aggregate", lambda *_, **__: (None, None))
    screening = Screening(make_rules("delta"), partition_of)
    worker_sums = WorkerSums(size=4) if summed else None
    rounds = Rounds(FedAvg(), screening=screening, worker_sums=worker_sums, client_of=partition_of)
    rounds.train(1, start(), grid)
    refused = 0 in {failure["client"] for failure in rounds.record.failures}
    assert refused is not (checks and summed)


def test_nothing_of_it_reaches_disk_or_report_unescaped(tmp_path):
    def named(place):
        content = honest("delta", 0)
        if place == "tensor":
            content[ARRAYS][EVIL] = content[ARRAYS]["scale"]
        elif place == "record":
            content[EVIL] = ConfigRecord()
        elif place == "metric":
            content[METRICS][EVIL] = 1.0
        elif place == "withheld":
            content[UPDATE]["withheld"] = json.dumps({"scale": EVIL})
        elif place == "protocol":
            content[UPDATE]["protocol"] = EVIL
        else:
            content[UPDATE][place] = EVIL
        return content

    places = ["tensor", "record", "metric", "withheld", "protocol", "kind", "partition-id", "buffers", EVIL]
    replies = [as_reply(named(place), client) for client, place in enumerate(places)]
    replies.append(Message(error=Error(2, EVIL), metadata=as_reply(RecordDict(), len(places)).metadata))
    folder = RunFolder(tmp_path)
    with log_to(folder.log):
        server = Server("delta", lambda observation, truth: None)
        server.round(replies)
        getLogger("server").warning("client 3 raised:\n%s\x1b[2J\rgone", EVIL)
    assert len(server.failures) == len(places) + 2
    folder.append("metrics", {"round": 1, "failures": server.rounds.record.failures})
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert r"\x3cscript\x3e" in page
    assert "&lt;script&gt;" in page, "a client's own words are shown, escaped"
    assert len((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    lines = folder.log.read_text(encoding="utf-8").splitlines()
    assert len(lines) > len(places)
    assert not [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d .* (INFO|WARNING) (server|flwr)|    ", line)]
    assert all(line.replace("\t", " ").isprintable() for line in lines)
    assert not [line for line in lines if line.startswith("2026-11-01 00:00:00,000")]
    assert any("WARNING server.screening: client 3: malformed reply: " in line for line in lines)


@pytest.mark.parametrize("strategy", ["fedsgd", "fedavg"])
@pytest.mark.parametrize(
    "settings",
    [
        ["defense=[]"],
        ["defense=[no_pe]"],
        ["defense=[withhold]"],
        ["defense=[mjp,half]"],
        ["defense=[local_dp]", "defense.local_dp.epsilon=inf", "defense.local_dp.clipping_norm=inf"],
        ["defense=[leakage_gate]", "defense.leakage_gate.threshold=-100.0"],
        ["defense=[]", "model=lenet_dlg", "model.img_size=8", "model.kwargs.depth=2"],
    ],
    ids=str,
)
def test_honest_clients_are_never_refused(federate, strategy, settings):
    few = ("data.test_fraction=0.85", "+model.kwargs.depth=1")
    federation = federate(f"strategy={strategy}", "num_clients=3", "client.batch_size=300", *few, *settings)
    config, model = federation.config, federation.setup.model
    kind, side = config["client"]["share"], image_side(config["model"])
    rules = ReplyRules.of(model, kind, defenses=tuple(config["defense"]), batch_size=300, image_shape=(3, side, side))
    seen = []
    rounds = federation.observed(seen, screening=Screening(rules, partition_of), client_of=partition_of)
    found = rounds.train(1, to_arrays(model.state_dict()), federation.grid())
    assert rounds.record.failures == []
    assert rounds.record.metrics["clients"] == len(seen) == 3
    assert all(truth is not None for _, truth in seen)
    assert torch.isfinite(next(iter(from_arrays(found).values()))).all()
