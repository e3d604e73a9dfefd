"""Files of a run are whole or absent."""

import os

import pytest
import torch
from safetensors.torch import load_file

from fedsim.errors import ConfigError
from fedsim.tracking import RunFolder, Trackers


def test_lines_are_appended_and_a_torn_one_is_passed_over(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.append("metrics", {"round": 1, "accuracy": 0.5})
    folder.append("metrics", {"round": 2})
    with (folder.root / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    assert list(folder.rows("metrics")) == [{"round": 1, "accuracy": 0.5}, {"round": 2}]
    assert list(folder.rows("nothing")) == []


def test_checkpoints_keep_the_last_ones(tmp_path):
    folder = RunFolder(tmp_path)
    for server_round in (1, 2, 3):
        folder.save_checkpoint({"w": torch.full((2,), float(server_round))}, server_round, keep=2)
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    assert names == ["round-00002.safetensors", "round-00003.safetensors"]
    assert torch.equal(load_file(folder.checkpoints / names[-1])["w"], torch.full((2,), 3.0))


def test_a_file_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="run_dir"):
        RunFolder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="written"):
        RunFolder(tmp_path / "run")


def test_tensorboard_gets_the_numbers(tmp_path):
    trackers = Trackers({"tensorboard": {"_target_": "fedsim.tracking.TensorBoard"}}, tmp_path)
    trackers.log(1, {"accuracy": 0.5})
    trackers.close()
    assert any(path.stat().st_size > 0 for path in (tmp_path / "tensorboard").iterdir())


def test_a_tracker_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a class with log and close"):
        Trackers({"odd": {"_target_": "builtins.dict"}}, tmp_path)
