"""Sums of replies that were checked: honest ones to the same bits, and nothing of any other."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsim.simulation import InlineGrid, SimulatedGrid, node_id_of
from fedsim.simulation.bundle import Bundle, BundleReplies, Growing, run_bundle
from fedsim.simulation.delivery import deliver, partition_of
from fedsim.simulation.folding import Fold
from fedsim.simulation.grid import Ended, make_context
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_WANTED, PartialSums
from fedsim.wire.records import ARRAYS, CONFIG, METRICS, UPDATE, from_arrays
from tests.fuzz.federation import KINDS, honest, make_rules, start

CLIENTS = 7


class Answering(ClientApp):
    """Answers with whatever `answer` gives."""

    def __init__(self, answer):
        super().__init__()
        self._answer = answer

    def __call__(self, message, context):
        return self._answer(message, context)


def _nan(content):
    content[ARRAYS]["head.bias"] = Array(np.full(2, np.nan, dtype=np.float32))


def _without_head(content):
    del content[ARRAYS]["head.bias"]
    content[UPDATE]["withheld"] = json.dumps({"head.bias": "local_dp"})


def _other_metric(content):
    content[METRICS]["local_dp_more"] = 1.0


def _fewer_metrics(content):
    del content[METRICS]["local_dp_epsilon"]


def instructions(size=3):
    return RecordDict({ARRAYS: start(), CONFIG: ConfigRecord({SUM_WANTED: size})})


def round_of(kind, rules, changes=None, left_out=()):
    """Replies, and the sum in them, of honest clients but for `changes`, by client; those `left_out` raise."""

    def app(message, context):
        client = context.node_config["partition-id"]
        if client in left_out:
            raise RuntimeError("no")
        content = honest(kind, client)
        (changes or {}).get(client, lambda content: None)(content)
        return Message(content, reply_to=message)

    grid = InlineGrid(CLIENTS, lambda: Answering(app), rules=rules)
    content = instructions()
    replies = list(grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()]))
    return replies, [reply.content for reply in replies if not reply.has_error() and SUM in reply.content]


def group_of_three():
    content = instructions()
    messages = tuple(Message(content, node_id_of(client), "train") for client in range(3))
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = str(number)
    return messages


def same_sums(left, right):
    (a,), (b,) = left, right
    one, other = from_arrays(a[SUM]), from_arrays(b[SUM])
    return list(one) == list(other) and all(t.equal(other[n]) for n, t in one.items()) and a[SUM_OF] == b[SUM_OF]


@pytest.mark.parametrize("kind", KINDS)
def test_checks_change_no_bit_of_an_honest_sum(kind):
    replies, checked = round_of(kind, make_rules(kind))
    assert not any(reply.has_error() for reply in replies)
    assert same_sums(checked, round_of(kind, None)[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_nan, "tensor head.bias has values that are not finite"),
        (_other_metric, "its metrics are not those of most clients: 'local_dp_more' is additional"),
        (_fewer_metrics, "its metrics are not those of most clients: 'local_dp_epsilon' is missing"),
    ],
)
def test_nothing_of_a_refused_client_is_in_the_sum(kind, change, words):
    # Client 0 carries the sum of the others while it is honest, and 3 begins a group.
    replies, sums = round_of(kind, make_rules(kind), {0: change, 3: change})
    failures = {number: reply.error.reason for number, reply in enumerate(replies) if reply.has_error()}
    assert failures == dict.fromkeys((0, 3), f"malformed reply: {words}")
    assert same_sums(sums, round_of(kind, make_rules(kind), left_out=(0, 3))[1])


def test_of_gradients_those_with_other_tensors_than_most_are_refused():
    replies, sums = round_of("gradient", make_rules("gradient"), {1: _without_head})
    assert [reply.has_error() for reply in replies] == [client == 1 for client in range(CLIENTS)]
    assert replies[1].error.reason.endswith("its tensors are not those of most clients: 'head.bias' is missing")
    assert same_sums(sums, round_of("gradient", make_rules("gradient"), left_out=(1,))[1])


def test_deltas_may_lack_different_tensors():
    replies, sums = round_of("delta", make_rules("delta"), {1: _without_head})
    assert not any(reply.has_error() for reply in replies)
    assert len(sums) == 2


def test_the_order_of_tensors_makes_no_sum_of_its_own():
    def reverse(content):
        content[ARRAYS] = type(content[ARRAYS])(dict(reversed(content[ARRAYS].items())))

    _, sums = round_of("gradient", make_rules("gradient"), {4: reverse})
    assert same_sums(sums, round_of("gradient", make_rules("gradient"))[1])


def test_a_group_whose_worker_died_is_checked_where_its_sum_is_made():
    messages, rules = group_of_three(), make_rules("delta")
    contents = [honest("delta", client) for client in range(3)]
    _nan(contents[1])
    fold, light = Fold(frozenset(), rules), []
    for part in fold.split(Bundle(messages, frozenset(), 0, (3,))):
        (message,) = part.messages
        reply = Message(contents[int(message.metadata.message_id)], reply_to=message)
        light += fold.put(part, BundleReplies([reply]))
    assert [reply.has_error() for reply in light] == [False, True, False]
    _, sums = fold.result(messages, light)
    ((_, total),) = PartialSums.read(sums).by_key.items()
    assert total.clients == 2


def test_of_a_split_group_that_runs_out_of_time_those_who_answered_are_in_the_sum():
    messages, rules = group_of_three(), make_rules("delta")
    fold = Fold(frozenset(), rules)
    parts = fold.split(Bundle(messages, frozenset(), 0, (3,)))
    for part, client in ((parts[2], 2), (parts[0], 0)):
        assert fold.put(part, BundleReplies([Message(honest("delta", client), reply_to=part.messages[0])])) == []
    light = fold.rest()
    assert [reply.metadata.reply_to_message_id for reply in light] == ["0", "2"]
    _, sums = fold.result([messages[0], messages[2]], light)
    ((_, total),) = PartialSums.read(sums).by_key.items()
    assert total.clients == 2
    assert fold.rest() == []


def answer_to(bundle, rules):
    """As a worker gives it: the sums of these clients, and their replies without updates; through a pickle."""
    growing = Growing(bundle.whole, rules, bundle.group, bundle.lengths)
    app = Answering(
        lambda message, context: Message(honest("delta", partition_of(message.metadata.dst_node_id)), reply_to=message)
    )
    answer = run_bundle(app, bundle.messages, lambda node: make_context(node, 3, None), growing)
    return pickle.loads(pickle.dumps(answer, protocol=5))


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("begun", [1, 2])
def test_a_group_whose_last_clients_were_taken_back_has_the_same_sum(begun, lost):
    messages, rules = group_of_three(), make_rules("delta")
    whole = frozenset({node_id_of(2)})
    group, fold = Bundle(messages, whole, 0, (3,)), Fold(whole, rules)
    _, undisturbed = fold.result(messages, fold.put(group, answer_to(group, rules)))
    fold, light = Fold(whole, rules), []
    rest = fold.split(group, begun)
    assert [part.key for part in rest] == [message.metadata.message_id for message in messages[begun:]]
    head = replace(group, messages=messages[:begun])
    parts = [*reversed(rest), *(fold.split(head) if lost else [head])]
    for part in parts:
        light += fold.put(part, answer_to(part, rules))
    replies = {reply.metadata.reply_to_message_id: reply for reply in light}
    assert [ARRAYS in replies[message.metadata.message_id].content for message in messages] == [False, False, True]
    assert same_sums(fold.result(messages, light)[1], undisturbed)


def test_a_grid_without_rules_does_not_claim_to_check():
    assert not InlineGrid(1, lambda: None).checks_replies
    assert InlineGrid(1, lambda: None, rules=make_rules("delta")).checks_replies


def test_a_reply_answers_the_message_that_was_sent():
    grid = InlineGrid(2, lambda: None)
    messages = [Message(RecordDict(), node_id_of(client), "train") for client in (0, 1)]
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = str(number)
    context = grid.context_of(node_id_of(0))
    answers = {
        "right": lambda message, _: Message(RecordDict(), reply_to=message),
        "another's": lambda *_: Message(RecordDict(), reply_to=messages[1]),
        "none": lambda *_: None,
        "a record": lambda *_: RecordDict(),
        "the question": lambda message, _: message,
    }
    replies = {name: deliver(Answering(app), messages[0], context) for name, app in answers.items()}
    assert [name for name, reply in replies.items() if not reply.has_error()] == ["right"]
    assert {reply.metadata.src_node_id for reply in replies.values()} == {node_id_of(0)}
    assert replies["none"].error.reason == "malformed reply: it is no answer to what was asked"


def of_groups(length, sizes):
    """Several groups of honest clients in one bundle, as a worker gets them."""
    content = instructions()
    messages = tuple(Message(content, node_id_of(client), "train") for client in range(length))
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = str(number)
    return Bundle(messages, frozenset({node_id_of(1)}), 0, sizes)


def folded(bundles, rules, messages, fold=None):
    """The replies and the sum of bundles that are answered in this order."""
    fold = Fold(frozenset({node_id_of(1)}), rules) if fold is None else fold
    light = [reply for bundle in bundles for reply in fold.put(bundle, answer_to(bundle, rules))]
    order = {message.metadata.message_id: place for place, message in enumerate(messages)}
    assert sorted(order[reply.metadata.reply_to_message_id] for reply in light) == list(range(len(messages)))
    return fold.result(messages, light)


SIZES = (2, 2, 2, 2, 2, 1)


def test_several_groups_in_one_call_have_the_sum_of_each_by_itself():
    rules, every = make_rules("delta"), of_groups(11, SIZES)
    groups = every.groups()
    assert [(group.group, len(group.messages)) for group in groups] == list(enumerate(SIZES))
    replies, apart = folded(groups, rules, every.messages)
    assert [ARRAYS in reply.content for reply in replies] == [client == 1 for client in range(11)]
    first = replace(every, messages=every.messages[:6], lengths=SIZES[:3])
    second = replace(every, messages=every.messages[6:], group=3, lengths=SIZES[3:])
    for bundles in ([every], [first, second], [second, first]):
        assert same_sums(folded(bundles, rules, every.messages)[1], apart)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("begun", [1, 2, 3, 5, 8, 10])
def test_what_was_taken_back_of_several_groups_changes_no_bit_of_their_sum(begun, lost):
    """Those that were begun come from the slow worker, or from nobody where it died: then from others, each anew."""
    rules, every = make_rules("delta"), of_groups(11, SIZES)
    _, undisturbed = folded([every], rules, every.messages)
    fold = Fold(every.whole, rules)
    rest = fold.split(every, begun)
    whole_groups = [bundle for bundle in rest if bundle.whole is not None]
    assert all(len(bundle.lengths) == 1 for bundle in whole_groups)
    assert [m for bundle in rest for m in bundle.messages] == list(every.messages[begun:])
    head = replace(every, messages=every.messages[:begun])
    bundles = [*reversed(rest), *(fold.split(head) if lost else [head])]
    assert same_sums(folded(bundles, rules, every.messages, fold)[1], undisturbed)


class DiesOnce(SimulatedGrid):
    """Its worker is slow at the first of all messages, so that the others are taken back, and then dies at it."""

    _ahead, close, _abandon = 9, None, None

    def __init__(self, clients, rules):
        super().__init__(clients, rules=rules)
        self._queue, self._rest, self._died = [], [], False

    def _together(self, waiting, seconds, whole):
        return waiting

    def _submit(self, bundle):
        self._queue.append(bundle)

    def _poll(self, timeout):
        bundle = self._queue.pop(0)
        if self._died:
            return [Ended(bundle, answer_to(bundle, self.rules))]
        self._died, self._rest = True, [(bundle, 1)]
        return [Ended(replace(bundle, messages=bundle.messages[:1]), None, "its worker died once")]

    def _taken_back(self):
        taken, self._rest = self._rest, []
        return taken


def test_a_client_whose_worker_died_once_at_what_was_left_to_it_is_asked_again():
    content = instructions(size=1)
    messages = [Message(content, node_id_of(client), "train") for client in range(8)]
    replies = DiesOnce(8, make_rules("delta")).send_and_receive(messages)
    assert [reply.has_error() for reply in replies] == 8 * [False]
    (clients,) = (reply.content[SUM_OF]["clients"] for reply in replies if SUM_OF in reply.content)
    assert clients == 8


def test_several_groups_whose_worker_died_are_tried_group_by_group():
    fold, every = Fold(frozenset()), of_groups(11, SIZES)
    groups = fold.split(every)
    assert [bundle.messages for bundle in groups] == [group.messages for group in every.groups()]
    (first, second) = fold.split(groups[0])  # and then client by client
    assert (first.messages, second.messages) == ((every.messages[0],), (every.messages[1],))
