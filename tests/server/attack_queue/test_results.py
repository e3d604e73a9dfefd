"""Results on disk and what trackers are given of them."""

from pathlib import Path

import pytest
import torch

from fedsim.ground_truth import GroundTruth
from fedsim.metrics.results import score_against
from fedsim.result import AttackResult, Certificate, Frame
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


def test_a_line_is_the_result_and_the_files_of_its_images(tmp_path):
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    truth = GroundTruth(images, torch.tensor([1, 0]), ("a", "b"))
    frames = (Frame(0, images / 2, {"objective": 2.0}), Frame(9, images, {"objective": 0.5}))
    vouched = Certificate("certified", "full rank", {"promised_psnr": 60.0})
    made = {"certificate": vouched, "images": images, "labels": torch.tensor([0, 1]), "frames": frames}
    result = AttackResult("round-00002-client-00003", "search", "done", "", 2, 3, 2, 4, **made, seconds=1.5)
    scored = score_against(result, truth)
    folder = RunFolder(tmp_path)
    ResultWriter(folder, Trackers({}, tmp_path), "model", []).write(scored, truth)
    (row,) = folder.rows("attacks")
    lines = [row, scored.to_json()]
    apart = [{key: value for key, value in line.items() if key != "images"} for line in lines]
    assert apart[0] == apart[1]
    assert row["client"] == "3 (sum of 4 clients)"
    assert (tmp_path / row["images"][0]["reconstruction"]).is_file()
    for line in lines:
        back = AttackResult.from_json(line)
        assert (back.server_round, back.client, back.batch_size, back.summed) == (2, 3, 2, 4)
        assert back.certificate == vouched
        assert (back.psnr, back.scores.labels, back.scores.frames) == (
            scored.psnr,
            scored.scores.labels,
            scored.scores.frames,
        )
