"""Who takes part is a function of the seed, whatever else draws from Python's generator."""

import random

import pytest
from flwr.serverapp.strategy import FedAvg

from fedsim.simulation import InlineGrid
from fedsim.wire.records import to_arrays
from server.rounds import Rounds


class Waiting(InlineGrid):
    """Threads of Flower's draw, more or less often, while it waits for nodes."""

    def __init__(self, draws):
        super().__init__(20, None)
        self.draws, self.sent = draws, []

    def get_node_ids(self):
        for _ in range(self.draws):
            random.random()
        return super().get_node_ids()

    def send_and_receive(self, messages, *, timeout=None):
        self.sent.append(sorted(message.metadata.dst_node_id for message in messages))
        return []


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_other_draws_while_nodes_are_asked_for_change_nothing(name):
    sampled = []
    for draws in (0, 1, 3):
        grid, rounds = Waiting(draws), Rounds(FedAvg(fraction_train=0.2, fraction_evaluate=0.2), seed=4)
        for server_round in (1, 2):
            getattr(rounds, name)(server_round, to_arrays({}), grid)
        sampled.append(grid.sent)
    assert sampled[0] == sampled[1] == sampled[2]
    assert sampled[0][0] != sampled[0][1]
    assert list(map(len, sampled[0])) == [4, 4]
