"""Results on disk and what trackers are given of them."""

import csv
import math
from pathlib import Path

import pytest
import torch

from fedsim.ground_truth import GroundTruth, content_of
from fedsim.metrics.image import PSNR_CAP
from fedsim.metrics.results import score_against
from fedsim.report.run.images.leakage import summarise_leakage
from fedsim.report.run.read import read_run
from fedsim.result import AttackResult, Certificate, Frame
from fedsim.storage.run_folder import RunFolder
from fedsim.tracking import Trackers
from server.attack_queue.results import BEFORE, ResultWriter


class Remembering(Trackers):
    """In place of all trackers."""

    def __init__(self):
        super().__init__({}, Path())
        self.got = []

    def log(self, step, values):
        self.got += [(step, name) for name in values]
        self.last = values


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


def test_a_line_of_the_table_says_what_it_is_of(tmp_path):
    """As one that a folder of an earlier version gets, whose table had other columns."""
    images, folder = torch.rand(1, 3, 16, 16), RunFolder(tmp_path)
    truth, sure = GroundTruth(images, torch.tensor([1]), ("a",)), Certificate("certified")
    of = {"server_round": 2, "client": 3, "batch_size": 1}
    results = [
        AttackResult("o", "search", "done", **of, images=images, certificate=sure),
        AttackResult("o", "labels", "done", **of, labels=torch.tensor([1]), certificate=sure),
        AttackResult("o", "tag", "failed", "boom", **of),
        AttackResult("o", "april", "done", **of, certificate=Certificate("uncertified")),
        AttackResult("o", "april_", "done", **of),
    ]
    writer = ResultWriter(folder, Trackers({}, tmp_path), "model", [], lambda: torch.full((3, 16, 16), 0.5))
    for result in results:
        writer.write(score_against(result, truth), truth)
    written = (tmp_path / "scores.csv").read_text()
    lines = list(csv.DictReader(written.splitlines()))
    assert {(line["observation"], line["round"], line["client"]) for line in lines} == {("o", "2", "3")}
    assert [line["status"] for line in lines] == ["done", "done", "failed", "done", "done"]
    assert [line["certified"] for line in lines] == ["images", "labels", "", "false", ""]
    assert all(float(line["guess_psnr"]) > 0 for line in lines)
    (tmp_path / "scores.csv").write_text("attack,defense\nsearch,none\n")
    ResultWriter(folder, Trackers({}, tmp_path), "model", [])
    assert (tmp_path / "scores.csv").read_text() == written


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_lost_attack_neither_takes_nor_gets_what_is_known_of_the_images_of_its_update(lost_first, tmp_path):
    images, folder = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)), RunFolder(tmp_path)
    truth = GroundTruth(images, torch.tensor([1, 0]), ("b", "a"))
    lost = AttackResult("o", "slow", "failed", "timeout"), GroundTruth(torch.empty(0), torch.tensor([0, 1]), ("a", "b"))
    done = AttackResult("o", "mine", "done", images=images), truth
    writer = ResultWriter(folder, Trackers({}, tmp_path), "model", [], lambda: torch.full((3, 16, 16), 0.4))
    for result, known in (lost, done) if lost_first else (done, lost):
        writer.write(score_against(result, known), known)
    rows = {row["attack"]: row["images"] for row in folder.rows("attacks")}
    assert [image["content"] for image in rows["mine"]] == [content_of(image) for image in images]
    assert None not in [image[name] for image in rows["mine"] for name in BEFORE]
    assert {image[name] for image in rows["slow"] for name in BEFORE} == {None}


def test_what_leaves_the_range_of_images_is_held_against_attacks_and_guesses_alike(tmp_path):
    """Half of the pixels' signs are turned: of both sides counts what a picture can show."""
    signs = torch.tensor([1.0, -1.0]).repeat(3, 16, 8)[None]
    own, grey = torch.full((1, 3, 16, 16), 0.6), torch.full((3, 16, 16), 0.5)
    truth = GroundTruth(own * signs, torch.tensor([1]), ("a",), own)
    shown = truth.shown
    result = AttackResult("o", "mine", "done", images=shown, frames=(Frame(1, shown),), batch_size=1)
    scored = score_against(result, truth)
    assert scored.scores.frames[0][-1] == scored.scores.images[0].psnr == PSNR_CAP
    folder = RunFolder(tmp_path)
    ResultWriter(folder, Trackers({}, tmp_path), "model", [], lambda: grey).write(scored, truth)
    (image,) = next(iter(folder.rows("attacks")))["images"]
    expected = -10 * math.log10((0.1**2 + 0.5**2) / 2)
    assert image["seen_grey_psnr"] == image["seen_guess_psnr"] == pytest.approx(expected, abs=1e-4)
    assert image["grey_psnr"] == pytest.approx(20, abs=1e-4)


def test_an_exact_image_does_not_outweigh_others_in_what_trackers_are_given(tmp_path):
    """One exact image of nine read as 40 dB, where the report of the same folder has 16."""
    images = torch.rand(9, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    truth = GroundTruth(images, torch.zeros(9, dtype=torch.int64), tuple("abcdefghi"))
    made = torch.cat([images[:1], (images[1:] + 0.4).clamp(0, 1)])
    scored = score_against(AttackResult("o", "mine", "done", server_round=1, batch_size=9, images=made), truth)
    trackers = Remembering()
    ResultWriter(RunFolder(tmp_path), trackers, "model", []).write(scored, truth)
    bad = sorted(scored.psnr)[:8]
    assert max(scored.psnr) > 200
    assert trackers.last["leakage/mine/psnr"] == pytest.approx((sum(bad) + 60.0) / 9)
    assert f"{(sum(bad) + 60.0) / 9:.1f} dB on average" in str(scored)


def test_without_originals_no_more_images_are_on_record_than_the_update_holds(tmp_path):
    """A report said that there were ten observed images, of an update of two."""
    folder, images = RunFolder(tmp_path), torch.rand(10, 3, 16, 16)
    result = AttackResult("o", "samples", "done", batch_size=2, images=images)
    ResultWriter(folder, Remembering(), "model", []).write(result, None)
    (row,) = folder.rows("attacks")
    assert [image["reconstruction"] for image in row["images"]] == [
        "reconstructions/o-samples-0000.png",
        "reconstructions/o-samples-0001.png",
    ]
    assert summarise_leakage(read_run(tmp_path)).pictures == 2
