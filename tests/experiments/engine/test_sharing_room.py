"""Who gives way to whom while workers wait for room."""

from types import SimpleNamespace

import pytest

from experiments.run import command as federated
from fedsim.simulation import InlineGrid
from server.attack_queue.scheduling import RayAttacks


class Waiting(RayAttacks):
    """Counts how often it gave way; nothing of Ray."""

    def __init__(self):
        self.gave_way = 0

    def give_way(self):
        self.gave_way += 1


@pytest.mark.parametrize(("address", "times"), [(None, 0), ("10.0.0.1:6379", 1)])
def test_attacks_give_way_only_where_clients_get_their_room(address, times, monkeypatch):
    said = []
    monkeypatch.setattr(federated, "_tell", said.append)
    run = object.__new__(federated._Run)
    grid, scheduler = object.__new__(InlineGrid), Waiting()
    run.__dict__.update(
        setup=SimpleNamespace(config=SimpleNamespace(ray=SimpleNamespace(address=address))),
        grid=grid,
        queue=SimpleNamespace(scheduler=scheduler),
    )
    run._share_the_cluster()
    grid.on_waiting("no client worker has started for 30 s")
    assert said == ["no client worker has started for 30 s"]
    assert scheduler.gave_way == times
