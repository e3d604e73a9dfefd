"""What a round tells its clients, whatever its strategy does."""

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedsim.simulation import InlineGrid
from fedsim.wire.partial_sums import SUM_WANTED
from fedsim.wire.records import ARRAYS, CONFIG, SERVER_ROUND, to_arrays
from server.rounds import Rounds, WorkerSums


class Mute(FedAvg):
    """Says nothing of the round; its clients get one content, or each its own."""

    def __init__(self, apart):
        super().__init__()
        self._apart = apart

    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({ARRAYS: arrays})
        contents = [RecordDict({ARRAYS: arrays}) if self._apart else content for _ in range(3)]
        return [Message(one, node, "train") for one, node in zip(contents, grid.get_node_ids(), strict=True)]


@pytest.mark.parametrize("apart", [True, False])
def test_clients_draw_by_the_round_and_are_summed_where_one_content_is_for_all(apart):
    grid, rounds = InlineGrid(3, None), Rounds(Mute(apart), worker_sums=WorkerSums())
    for server_round in (1, 2):
        told = [message.content[CONFIG] for message in rounds.configure(server_round, to_arrays({}), grid)]
        assert [one[SERVER_ROUND] for one in told] == 3 * [server_round]
        assert [SUM_WANTED in one for one in told] == 3 * [not apart]
