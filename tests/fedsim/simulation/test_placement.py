"""Who is asked to sit where: clients and attacks apart while there is room."""

import pytest

from fedsim.simulation.placement import Node, Placement, Request, seats


def nodes(*cpus, gpus=()):
    return [Node(f"n{i}", {"CPU": cpu, "GPU": gpus[i] if gpus else 0.0}) for i, cpu in enumerate(cpus)]


def test_attacks_have_a_node_to_themselves_while_clients_find_room_elsewhere_first():
    clients, attacks = seats(nodes(2.0, 2.0, 2.0), Request(), [(Request(), 2)])
    assert attacks == ["n0", "n0"]
    assert clients == ["n1", "n2", "n1", "n2"]


def test_what_is_left_beside_attacks_comes_last():
    clients, attacks = seats(nodes(4.0, 4.0), Request(), [(Request(), 1)])
    assert attacks == ["n0"]
    assert clients == ["n1"] * 4 + ["n0"] * 3


def test_attacks_take_the_nodes_that_are_of_least_use_to_clients():
    clients, attacks = seats(nodes(8.0, 8.0, gpus=(4.0, 0.0)), Request(1.0, 0.5), [(Request(2.0), 3)])
    assert attacks == ["n1"] * 3
    assert clients == ["n0"] * 8


@pytest.mark.parametrize(
    ("gpus", "share", "expected"), [((1.0, 2.0), 0.5, 6), ((1.0, 2.0), 1.0, 3), ((0.0, 1.0), 0.3, 3)]
)
def test_nodes_with_other_gpus_hold_as_many_as_they_can(gpus, share, expected):
    clients, _ = seats(nodes(16.0, 16.0, gpus=gpus), Request(1.0, share), [])
    assert len(clients) == expected


def test_custom_resources_are_kept_to():
    here, there = Node("here", {"CPU": 4.0}), Node("there", {"CPU": 4.0, "attacks": 1.0})
    clients, attacks = seats([here, there], Request(), [(Request(resources={"attacks": 0.5}), 3)])
    assert attacks == ["there", "there"]
    assert len(clients) == 6


def test_more_workers_than_room_are_left_to_ray(monkeypatch):
    monkeypatch.setattr("fedsim.simulation.placement.living_nodes", lambda: nodes(0.0))
    placement = Placement(Request(), ((Request(), 1),))
    assert placement.client(0) == placement.attack(0) == "DEFAULT"
    assert placement.room_for_clients() == 0


def test_a_suggestion_is_no_demand(monkeypatch):
    node = Node("a" * 56, {"CPU": 1.0})
    monkeypatch.setattr("fedsim.simulation.placement.living_nodes", lambda: [node])
    strategy = Placement(Request()).client(0)
    assert strategy.node_id == node.id
    assert strategy.soft
    assert strategy._spill_on_unavailable


def test_a_request_says_what_it_is():
    assert str(Request(1.0, 0.5, {"attacks": 1})) == "1 CPU, 0.5 GPU, 1 attacks"
