"""Files of a run are whole or absent."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from fedsim.errors import ConfigError, RunError
from fedsim.storage.run_folder import RunFolder


def test_lines_are_appended_and_a_torn_one_is_passed_over(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.append("metrics", {"round": 1, "accuracy": 0.5})
    folder.append("metrics", {"round": 2})
    with (folder.root / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    assert list(folder.rows("metrics")) == [{"round": 1, "accuracy": 0.5}, {"round": 2}]
    assert list(folder.rows("nothing")) == []


def test_rows_that_are_kept_keep_their_bytes(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(4):
        folder.append("metrics", {"round": number, "loss": 0.1 + 0.2})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 1, "lo')
    folder.keep_rows("metrics", lambda row: row["round"] < 2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(before.splitlines(keepends=True)[:2])
    folder.keep_rows("nothing", lambda row: False)
    assert not (tmp_path / "nothing.jsonl").exists()


def test_one_process_at_a_time_and_the_lock_goes_with_it(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(ConfigError, match="another process is at work"), RunFolder(tmp_path).locked():
        pytest.fail("two at once")
    with folder.locked():
        pass


@pytest.mark.parametrize("goes", [shutil.rmtree, lambda root: root.rename(root.with_name("elsewhere"))])
def test_a_folder_that_goes_while_it_is_locked_is_one_clear_line(tmp_path, goes):
    folder = RunFolder(tmp_path / "run")

    def lose() -> None:
        with folder.locked():
            goes(folder.root)
            folder.append("metrics", {"round": 1})

    with pytest.raises(RunError, match="run: this folder was removed or moved while"):
        lose()


def test_a_fault_in_a_folder_that_stays_is_what_it_was(tmp_path):
    with pytest.raises(FileNotFoundError), RunFolder(tmp_path).locked():
        (tmp_path / "none").read_bytes()


def test_a_folder_is_opened_by_many_at_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:  # the lock is taken later
        list(pool.map(lambda _: RunFolder(tmp_path), range(800)))
    assert not list(tmp_path.iterdir())  # parts are made by whoever writes into them


def test_too_little_room_is_named(tmp_path):
    RunFolder(tmp_path).check_room(1, "a point")
    with pytest.raises(ConfigError, match="a folder with 1000000000 MB free for a point, not"):
        RunFolder(tmp_path).check_room(10**15, "a point")


def test_checkpoints_keep_the_last_ones(tmp_path):
    folder = RunFolder(tmp_path)
    for server_round in (1, 2, 3):
        folder.save_checkpoint({"w": torch.full((2,), float(server_round))}, server_round, keep=2)
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    assert names == ["round-00002.safetensors", "round-00003.safetensors"]
    assert torch.equal(load_file(folder.checkpoints / names[-1])["w"], torch.full((2,), 3.0))


def test_a_run_that_went_back_keeps_the_checkpoints_that_it_writes_from_there(tmp_path):
    folder = RunFolder(tmp_path)
    folder.drop_checkpoints(after=-1)
    assert not (tmp_path / "checkpoints").exists()
    for server_round in (9, 10):
        folder.save_checkpoint({"w": torch.zeros(1)}, server_round)
    (folder.checkpoints / "round-mine.safetensors").touch()
    folder.drop_checkpoints(after=9)
    for server_round in (10, 11):
        folder.save_checkpoint({"w": torch.ones(1)}, server_round)
    names = {path.name for path in folder.checkpoints.iterdir()}
    assert names == {f"round-{which}.safetensors" for which in ("00010", "00011", "mine")}


def test_a_file_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="run_dir"):
        RunFolder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="written"):
        RunFolder(tmp_path / "run")


def test_the_last_checkpoints_are_kept_whatever_the_number_of_digits(tmp_path):
    folder = RunFolder(tmp_path)
    for server_round in (99_998, 99_999, 100_000):
        folder.save_checkpoint({"w": torch.zeros(1)}, server_round, keep=2)
    names = {path.name for path in folder.checkpoints.iterdir()}
    assert names == {"round-99999.safetensors", "round-100000.safetensors"}


def test_little_room_is_said_in_kilobytes(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=300_000))
    with pytest.raises(ConfigError, match=r"a folder with 1 MB free for a point, not 300 KB$"):
        RunFolder(tmp_path).check_room(1_000_000, "a point")
