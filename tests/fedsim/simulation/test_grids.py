"""Both Grids keep the same contract: order, faults, state, timeouts."""

import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.simulation import InlineGrid, node_id_of, on_ray, partition_of
from fedsim.simulation.bundle import Bundle, BundleReplies
from fedsim.simulation.folding import Fold
from fedsim.simulation.group_sums import GroupSums
from fedsim.simulation.on_ray import ClientWorker, RayGrid
from fedsim.simulation.placement import Request
from fedsim.wire.partial_sums import SUM, SUM_OF, SUM_WANTED, PartialSums
from fedsim.wire.records import ARRAYS, CONFIG, from_arrays, to_array
from tests.fedsim.simulation.obedient_client import make_client_app
from tests.fedsim.simulation.summed_client import make_client_app as summed
from tests.fedsim.simulation.summed_client import make_deadly_client_app as deadly
from tests.fuzz.federation import PICTURES, honest, make_rules, start


def messages(grid, order="answer", who=(), marker=""):
    config = ConfigRecord({"order": order, "who": list(who) or [-1], "marker": str(marker)})
    content = RecordDict({"config": config})
    return [Message(content, node_id, MessageType.TRAIN) for node_id in grid.get_node_ids()]


def answers(replies):
    return [reply.error.reason if reply.has_error() else reply.content["m"]["client"] for reply in replies]


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def grid(request):
    if request.param == "inline":
        made = InlineGrid(4, make_client_app)
    else:
        request.getfixturevalue("ray_on_this_machine")
        made = RayGrid(4, make_client_app, workers=2, request=Request(cpus=0.5), max_retries=1)
    yield made
    made.close()


def test_nodes_are_partitions(grid):
    assert [partition_of(node_id) for node_id in grid.get_node_ids()] == [0, 1, 2, 3]
    assert node_id_of(partition_of(7)) == 7


def test_replies_come_in_the_order_of_the_messages(grid):
    seen = []
    grid.on_reply = lambda reply: seen.append(reply.content["m"]["client"])
    assert answers(grid.send_and_receive(messages(grid, "slow-first"))) == [0, 1, 2, 3]
    assert sorted(seen) == [0, 1, 2, 3]


def test_a_client_that_raises_answers_with_its_error(grid):
    replies = answers(grid.send_and_receive(messages(grid, "raise", [2])))
    assert replies == [0, 1, "RuntimeError: no more pictures", 3]
    assert answers(grid.send_and_receive(messages(grid))) == [0, 1, 2, 3]


def test_state_stays_with_its_node(grid):
    for visit in (1, 2, 3):
        replies = list(grid.send_and_receive(messages(grid, "remember")))
        assert [reply.content["m"]["visits"] for reply in replies] == [visit] * 4


def test_push_and_pull_find_every_reply(grid):
    ids = set(grid.push_messages(messages(grid)))
    got = []
    deadline = time.monotonic() + 200
    while len(got) < 4 and time.monotonic() < deadline:
        got += grid.pull_messages(ids - {reply.metadata.reply_to_message_id for reply in got})
    assert sorted(answers(got)) == [0, 1, 2, 3]
    assert {reply.metadata.reply_to_message_id for reply in got} == ids


def test_a_late_client_answers_with_an_error_and_the_next_round_is_whole(ray_on_this_machine):
    grid = RayGrid(3, make_client_app, workers=2, request=Request(cpus=0.5))
    try:
        list(grid.send_and_receive(messages(grid)))
        replies = answers(grid.send_and_receive(messages(grid, "hang", [1]), timeout=5.0))
        assert replies == [0, "no reply within 5 s", 2]
        assert answers(grid.send_and_receive(messages(grid))) == [0, 1, 2]
    finally:
        grid.close()


def test_quick_clients_travel_together_and_one_that_hangs_costs_itself_alone(ray_on_this_machine, monkeypatch):
    monkeypatch.setattr(on_ray, "SPAN", 1e6)  # however slow the machine: these are quick clients
    monkeypatch.setattr(on_ray, "LEAST", 0.0)
    grid = RayGrid(24, make_client_app, workers=2, request=Request(cpus=0.5))
    sent = []
    submit = grid._submit
    monkeypatch.setattr(grid, "_submit", lambda bundle: (sent.append(len(bundle.messages)), submit(bundle)))
    try:
        assert answers(grid.send_and_receive(messages(grid))) == list(range(24))
        assert sent[:4] == [1, 1, 1, 1]  # nothing is known of these clients yet
        sent.clear()
        assert answers(grid.send_and_receive(messages(grid))) == list(range(24))
        assert sent[0] == 6
        assert len(sent) < sum(sent) == 24
        monkeypatch.setattr(on_ray, "OVERDUE", 0.5)
        replies = answers(grid.send_and_receive(messages(grid, "hang", [3]), timeout=5.0))
        assert replies == [0, 1, 2, "no reply within 5 s", *range(4, 24)]
        sent.clear()
        replies = answers(grid.send_and_receive(messages(grid, "die", [20])))
        assert replies == [*range(20), "its worker died 3 times", *range(21, 24)]
    finally:
        grid.close()


@pytest.mark.parametrize(("seconds", "sizes"), [(0.01, [10, 10]), (0.03, [8, 8, 2, 2])])
def test_the_last_quarter_of_a_round_waits_for_who_is_done_first_unless_it_is_short(seconds, sizes):
    grid = object.__new__(RayGrid)
    grid._workers, grid._share = 2, (0, 0, 0)
    waiting, sent = 20, []
    while waiting:
        sent.append(grid._together(waiting, seconds, frozenset()))
        waiting -= sent[-1]
    assert sent == sizes


def test_a_worker_tells_of_the_bundle_that_it_is_asked_for_alone():
    worker = ClientWorker(make_client_app, 3, 1)
    grid = InlineGrid(3, make_client_app)
    (first, second, _) = messages(grid)
    for number, message in enumerate((first, second)):
        message.metadata.__dict__["_message_id"] = str(number)
    worker._content_id = "held"
    reference = SimpleNamespace(hex=lambda: "held")
    worker._content = first.content
    assert answers(worker.run([reference], [first.metadata], {}, None).replies) == [0]
    assert worker.so_far("1").replies == []  # handed over, and not begun
    assert answers(worker.so_far("0").replies) == [0]


def test_what_a_slow_worker_has_not_begun_is_done_by_others_and_answered_once(
    ray_on_this_machine, monkeypatch, tmp_path
):
    monkeypatch.setattr(on_ray, "SPAN", 1e6)
    monkeypatch.setattr(on_ray, "LEAST", 0.0)
    monkeypatch.setattr(on_ray, "OVERDUE", 0.5)
    grid, seen = RayGrid(8, make_client_app, workers=2, request=Request(cpus=0.5)), []
    try:
        list(grid.send_and_receive(messages(grid)))
        marker = tmp_path / "the others are done"

        def answered(reply):
            seen.append(reply.content["m"]["client"])
            if len(seen) == 7:
                marker.touch()

        grid.on_reply = answered
        assert answers(grid.send_and_receive(messages(grid, "slow", [0], marker))) == list(range(8))
        assert seen[-1] == 0  # the one behind it did not wait
        assert sorted(seen) == list(range(8))
        seen.clear()
        assert answers(grid.send_and_receive(messages(grid, "remember"))) == list(range(8))
        assert sorted(seen) == list(range(8))
    finally:
        grid.close()


def test_a_slow_group_gives_away_its_rest_and_keeps_its_sum(ray_on_this_machine, monkeypatch):
    monkeypatch.setattr(on_ray, "OVERDUE", 0.5)
    rules, content = make_rules("delta"), RecordDict({ARRAYS: start(), CONFIG: ConfigRecord({SUM_WANTED: 4})})
    taken, sums = [], []
    for make in (partial(InlineGrid, 10, summed), partial(RayGrid, 10, summed, 2, request=Request(cpus=0.5))):
        grid = make(rules=rules)
        back = grid._taken_back
        monkeypatch.setattr(grid, "_taken_back", lambda back=back: taken.extend(more := back()) or more)
        try:
            replies = list(grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()]))
        finally:
            grid.close()
        assert not any(reply.has_error() for reply in replies)
        (total,) = [reply.content for reply in replies if SUM in reply.content]
        sums.append(total)
    ((bundle, begun),) = taken
    assert (len(bundle.messages), begun) == (4, 1)
    inline, on_workers = (from_arrays(total[SUM]) for total in sums)
    assert all(tensor.equal(on_workers[name]) for name, tensor in inline.items())
    assert sums[0][SUM_OF] == sums[1][SUM_OF]


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 8, 13])
def test_groups_are_added_in_a_fixed_order_and_held_as_few_sums(groups):
    """However they arrive: floats are added otherwise in each order."""
    values = torch.randn(groups, 50, generator=torch.Generator().manual_seed(0)) * 1e3

    def total(order):
        fold, most = Fold(frozenset()), 0
        for group in order:
            sums, of_group = PartialSums(), GroupSums()
            reply = honest("delta", 0)
            reply[ARRAYS]["head.bias"] = to_array(values[group], copy=True)
            assert sums.add(reply)
            of_group.add(group, sums)
            fold.put(Bundle((), frozenset(), group, (1,)), BundleReplies(sums=of_group))
            most = max(most, len(fold._sums))
        _, (content,) = fold.result([], [])
        return from_arrays(content[SUM])["head.bias"], most

    expected, held = total(range(groups))
    assert held <= groups.bit_length()
    torch.testing.assert_close(expected, PICTURES * values.sum(0), rtol=1e-5, atol=1e-1)
    shuffled = torch.randperm(groups, generator=torch.Generator().manual_seed(1)).tolist()
    for order in (reversed(range(groups)), shuffled, [*range(1, groups), 0]):
        assert total(order)[0].equal(expected)


def test_a_worker_agrees_to_stop_early_while_it_is_at_the_bundle():
    def app_that_stops_in(client):
        app = ClientApp()

        @app.train()
        def train(message, context):
            number = partition_of(context.node_id)
            if number == client:
                told.append(growing.stop_early())
            return Message(RecordDict({"m": MetricRecord({"client": number})}), reply_to=message)

        return app

    for client, expected in ((0, [0]), (1, [0, 1]), (2, [0, 1, 2])):
        growing, told = on_ray.Growing(None), []
        grid = InlineGrid(3, make_client_app)
        answer = on_ray.run_bundle(app_that_stops_in(client), messages(grid), grid.context_of, growing)
        assert answers(answer.replies) == expected
        assert told == [len(expected)]
    assert ClientWorker(make_client_app, 3, 1).stop_early("another") is None


def test_a_killed_worker_is_replaced_and_its_client_tried_again(ray_on_this_machine, tmp_path):
    grid = RayGrid(3, make_client_app, workers=2, request=Request(cpus=0.5), max_retries=1)
    try:
        assert answers(grid.send_and_receive(messages(grid, "die-once", [1], tmp_path / "died"))) == [0, 1, 2]
        assert (tmp_path / "died").exists()
        assert answers(grid.send_and_receive(messages(grid, "die", [1]))) == [0, "its worker died 2 times", 2]
        assert answers(grid.send_and_receive(messages(grid))) == [0, 1, 2]
    finally:
        grid.close()


def test_a_client_that_kills_its_worker_costs_itself_alone_among_several_groups(ray_on_this_machine, monkeypatch):
    monkeypatch.setattr(on_ray, "SPAN", 1e6)
    monkeypatch.setattr(on_ray, "LEAST", 0.0)
    rules, sums, sent, reasons = make_rules("delta"), [], [], []
    for make in (partial(InlineGrid, 16), partial(RayGrid, 16, workers=2, request=Request(cpus=0.5), max_retries=0)):
        grid = make(make_client_app=deadly, rules=rules)
        submit = grid._submit
        monkeypatch.setattr(
            grid, "_submit", lambda bundle, submit=submit: (sent.append(bundle.lengths), submit(bundle))
        )
        try:
            for marker in ("honest", "deadly"):
                config = ConfigRecord({SUM_WANTED: 2, "marker": marker})
                content = RecordDict({ARRAYS: start(), CONFIG: config})
                replies = list(grid.send_and_receive([Message(content, n, "train") for n in grid.get_node_ids()]))
        finally:
            grid.close()
        assert [reply.has_error() for reply in replies] == [client == 3 for client in range(16)]
        reasons.append(replies[3].error.reason)
        (total,) = [reply.content for reply in replies if not reply.has_error() and SUM in reply.content]
        sums.append(total)
    assert max(map(len, sent)) > 1  # several groups went in one call
    assert reasons == ["RuntimeError: no", "its worker died once"]
    inline, on_workers = (from_arrays(total[SUM]) for total in sums)
    assert all(tensor.equal(on_workers[name]) for name, tensor in inline.items())
    assert sums[0][SUM_OF] == sums[1][SUM_OF]
