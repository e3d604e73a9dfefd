"""Results on disk and what trackers are given of them."""

from pathlib import Path

import pytest

from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.results import ResultWriter


class Remembering(Trackers):
    """In place of all trackers."""

    def __init__(self):
        super().__init__({}, Path())
        self.got = []

    def log(self, step, values):
        self.got += [(step, name) for name in values]


@pytest.fixture
def ended(tmp_path):
    """A folder with a result of each of rounds 1, 2, 1 and 3, in the order in which they ended."""
    folder = RunFolder(tmp_path)
    for number, server_round in enumerate((1, 2, 1, 3)):
        row = {"observation": f"round-{server_round}-{number}", "attack": f"a{number}", "round": server_round}
        rest = {"client": number, "status": "done", "baseline": False, "reason": "", "certificate": None, "trace": []}
        numbers = {"seconds": 1.0, "batch_size": 1, "attempts": 1, "labels": None, "label_exact": None}
        folder.append("attacks", {**row, **rest, **numbers, "label_share": 1.0, "scored": True, "images": []})
    return folder


@pytest.mark.parametrize(
    ("server_round", "tracked", "again"),
    [
        (1, 1, ["a1", "a2", "a3"]),  # a2 is of the round that counts, and ended after the trackers had written
        (1, 3, ["a1", "a3"]),
        (3, 4, []),
        (-1, 0, ["a0", "a1", "a2", "a3"]),  # the run begins anew, the results of its attacks are kept
    ],
)
def test_trackers_get_again_what_they_have_lost(ended, server_round, tracked, again):
    trackers = Remembering()
    writer = ResultWriter(ended, trackers, "model", [])
    assert writer.written == 4
    writer.track_again(server_round, tracked)
    assert [name.split("/")[1] for _, name in trackers.got] == again
