"""Partition ids in place of random node ids, replies in order, and everybody named who does not answer."""

import math

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from httpx import ConnectTimeout

from experiments.flower.grid import UNAVAILABLE, NumberedGrid
from experiments.flower.settings import INTRODUCTION
from fedsim.errors import RunError
from fedsim.simulation import node_id_of, partition_of
from server.privacy_budget import PrivacyBudget
from tests.experiments.flower.scrambled_grid import ScrambledGrid


@pytest.fixture
def app():
    """Says which partition it is, and echoes."""
    app = ClientApp()

    @app.query()
    def introduce(message, context):
        if "fault" in context.node_config:
            raise RuntimeError(context.node_config["fault"])
        record = ConfigRecord({"partition-id": context.node_config["says"], "version": "0.0.1"})
        return Message(RecordDict({INTRODUCTION: record}), reply_to=message)

    @app.train()
    def train(message, context):
        number = context.node_config["says"]
        if number == 3:
            raise RuntimeError("out of memory")
        reply = Message(RecordDict({"who": ConfigRecord({"partition": number})}), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node_id_of(0)  # a client that says it is another
        return reply

    return app


def make(app, *says, **more):
    """The Grid, and the one in it."""
    inner = ScrambledGrid(app, {}, [{"says": number} for number in says])
    settings = {"num_clients": len(says), "patience": 0.3, "say": lambda text: None}
    return NumberedGrid(inner, **(settings | more)), inner


def instructions(nodes):
    return [Message(RecordDict(), node, "train") for node in nodes]


def said(message):
    return message.content.config_records["who"]["partition"]


def test_nodes_are_partitions_and_replies_come_in_the_order_of_the_messages(app):
    grid, _ = make(app, 2, 0, 3, 1)
    nodes = list(grid.get_node_ids())
    assert [partition_of(node) for node in nodes] == [0, 1, 2, 3]
    arrived = []
    grid.on_reply = arrived.append
    order = [nodes[2], nodes[0], nodes[3], nodes[1]]
    replies = list(grid.send_and_receive(instructions(order), timeout=10))
    assert [reply.metadata.src_node_id for reply in replies] == order
    assert [said(reply) for reply in replies if not reply.has_error()] == [2, 0, 1]
    assert "out of memory" in replies[2].error.reason
    assert len(arrived) == 4
    assert grid.send_and_receive([], timeout=10) == []


def test_a_client_that_does_not_answer_in_time_is_named(app):
    grid, inner = make(app, 0, 1, 2)
    nodes = list(grid.get_node_ids())
    inner.silent |= {node for node, config in inner.present.items() if config["says"] == 1}
    replies = list(grid.send_and_receive(instructions(nodes), timeout=0.3))
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.reason == "late: no reply within 0.3 s"


@pytest.mark.parametrize("code", UNAVAILABLE)
def test_what_the_superlink_may_hold_of_a_client_counts_as_late(app, code):
    grid, inner = make(app, 0, 1)
    nodes, answer = list(grid.get_node_ids()), inner._answer

    def answering(dst, message):
        if inner.present[dst]["says"] == 0:
            return answer(dst, message)
        return Message(Error(code, "Error: Node Unavailable"), reply_to=message)

    inner._answer = answering
    _, reply = grid.send_and_receive(instructions(nodes), timeout=5)
    assert (reply.metadata.src_node_id, reply.error.code) == (nodes[1], code)
    assert reply.error.reason == "late: Error: Node Unavailable"
    budget = PrivacyBudget()
    budget.load_state_dict(budget.state_dict() | {"largest": {"dp_sgd_epsilon": 2.0}})
    budget.hear(2, [reply])
    assert dict(budget.put_into(None)) == {"dp_sgd_epsilon": math.inf}


def torn(inner, says):
    """Replies of this node cannot be unpacked, nor what is pulled together with one; gives the node."""
    node = next(node for node, config in inner.present.items() if config["says"] == says)
    answer, pull, names = inner._answer, inner.pull_messages, set()

    def answering(dst, message):
        if dst == node:
            names.add(message.metadata.message_id)
        return answer(dst, message)

    def pulling(message_ids):
        replies = list(pull(message_ids))
        if names.intersection(reply.metadata.reply_to_message_id for reply in replies):
            raise TypeError("Array arguments are no shape")
        return replies

    inner._answer, inner.pull_messages = answering, pulling
    return node


def test_a_reply_that_cannot_be_unpacked_is_its_clients_failure(app):
    grid, inner = make(app, 0, 1, 2)
    nodes = list(grid.get_node_ids())
    torn(inner, 1)
    replies = list(grid.send_and_receive(instructions(nodes), timeout=5))
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    assert [said(reply) for reply in replies if not reply.has_error()] == [0, 2]
    assert replies[1].error.reason == "malformed reply: it cannot be unpacked (TypeError)"


def test_who_cannot_introduce_itself_does_not_take_part(app):
    grid, inner = make(app, 0, 1, 2, num_clients=2)
    node = torn(inner, 2)
    assert [partition_of(one) for one in grid.get_node_ids()] == [0, 1]
    assert grid.refusals == [f"SuperNode {node}: it cannot be unpacked (TypeError)"]


@pytest.mark.parametrize(
    "error", [ConnectionError("refused"), ConnectTimeout("10 s"), MemoryError()], ids=lambda one: type(one).__name__
)
def test_a_superlink_that_cannot_be_reached_is_no_clients_failure(app, error):
    grid, inner = make(app, 0)
    nodes = list(grid.get_node_ids())

    def pull(message_ids):
        raise error

    inner.pull_messages = pull
    with pytest.raises(type(error)):
        grid.send_and_receive(instructions(nodes), timeout=5)


def test_a_reply_is_to_what_was_asked_whatever_it_says(app):
    grid, inner = make(app, 0, 1)
    nodes, answer = list(grid.get_node_ids()), inner._answer

    def answering(dst, message):
        reply = answer(dst, message)
        if inner.present[dst]["says"] == 1:
            reply.metadata.__dict__["_reply_to_message_id"] = "another"
        return reply

    inner._answer = answering
    replies = list(grid.send_and_receive(instructions(nodes), timeout=5))
    assert [(one.metadata.src_node_id, said(one)) for one in replies] == [(nodes[0], 0), (nodes[1], 1)]


def test_a_supernode_started_anew_takes_over_once_the_old_one_is_gone(app):
    grid, inner = make(app, 0, 1, 2)
    grid.get_node_ids()
    old = next(node for node, config in inner.present.items() if config["says"] == 1)
    new = inner.add({"says": 1})
    assert [partition_of(node) for node in grid.get_node_ids()] == [0, 1, 2]
    inner.silent.add(new)
    assert not next(iter(grid.send_and_receive(instructions([node_id_of(1)]), timeout=5))).has_error()
    del inner.present[old]
    inner.silent.clear()
    assert [partition_of(node) for node in grid.get_node_ids()] == [0, 1, 2]
    assert said(next(iter(grid.send_and_receive(instructions([node_id_of(1)]), timeout=5)))) == 1
    del inner.present[new]
    assert [partition_of(node) for node in grid.get_node_ids()] == [0, 2]


def test_a_supernode_started_anew_under_its_own_id_is_asked_anew(app):
    heard = []
    grid, inner = make(app, 0, 1, 2, say=heard.append)
    grid.get_node_ids()
    one, two = (next(node for node, config in inner.present.items() if config["says"] == number) for number in (1, 2))

    def after_start(config):
        del inner.present[two]
        grid.get_node_ids()
        inner.present[two] = config
        return [partition_of(node) for node in grid.get_node_ids()]

    assert after_start({"fault": "num-partitions=3"}) == [0, 1]
    assert after_start({"says": 2}) == [0, 1, 2]
    assert after_start({"fault": "num-partitions=3"}) == [0, 1]
    inner.silent.add(two)
    assert after_start({"says": 2}) == [0, 1]
    inner.silent.clear()
    assert after_start({"says": 2}) == [0, 1, 2]
    assert after_start({"says": 2}) == [0, 1, 2]
    assert not [text for text in heard if "more than one" in text]
    del inner.present[one]
    assert after_start({"says": 1}) == [0, 1]


def test_who_comes_back_with_another_partition_takes_it_from_nobody(app):
    grid, inner = make(app, 0, 1)
    grid.get_node_ids()
    one, other = inner.present
    for answer_under_way in (True, False):
        del inner.present[one]
        grid.get_node_ids()
        inner.silent = {one} if answer_under_way else set()
        inner.present[one] = {"says": 1}
        assert [partition_of(node) for node in grid.get_node_ids()] == [1]
    sent = []
    push = inner.push_messages
    inner.push_messages = lambda messages: push([sent.append(one.metadata.dst_node_id) or one for one in messages])
    grid.send_and_receive(instructions([node_id_of(1)]), timeout=5)
    assert sent == [other]


def test_a_foreign_reason_is_one_short_line(app):
    grid, inner = make(app, 0, num_clients=2)
    inner.add({"fault": "Traceback\n" + 40 * "  File \x1b[31m\n" + "out of memory"})
    with pytest.raises(RunError) as caught:
        grid.get_node_ids()
    assert str(caught.value).endswith("out of memory'>")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("says", [-1, 4, 0.5, "0", b"0"])
def test_who_says_nothing_sensible_is_no_client(app, says):
    grid, _ = make(app, 0, says, num_clients=1)
    assert list(grid.get_node_ids()) == [node_id_of(0)]
    assert len(grid.refusals) == 1
    assert "partition-id" in grid.refusals[0]


def test_missing_clients_end_the_wait_with_the_reasons(app):
    heard = []
    grid, inner = make(app, 0, 1, num_clients=4, say=heard.append)
    inner.add({"fault": "partition-id=None"})
    with pytest.raises(
        RunError, match=r"^2 of num_clients=4 clients came within \d+ s; SuperNode \d+: .*partition-id="
    ):
        grid.get_node_ids()
    assert "2 of 4 clients are there" in heard
    assert [text for text in heard if "partition-id=None" in text] == [f"does not take part: {grid.refusals[0]}"]
    assert "client 1 runs fedsim '0.0.1'" in " ".join(heard)


def test_where_no_other_supernode_can_come_a_refusal_ends_the_wait_at_once(app):
    grid, inner = make(app, 0, num_clients=2, patience=3600.0, fixed=True)
    inner.add({"fault": "partition-id=None"})
    with pytest.raises(RunError, match=r"^1 of num_clients=2 clients came within \d+ s; SuperNode"):
        grid.get_node_ids()
