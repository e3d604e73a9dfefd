"""Folders that Hydra made for runs that never began go again; those that stood before, and all files, stay."""

import pytest

from experiments.commands import fresh
from fedsim.storage.durable import locked


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """The run folder two levels below one that stands, as Hydra makes it."""
    monkeypatch.setattr(fresh, "_stood", {})
    (tmp_path / "stands").mkdir()
    folder = tmp_path / "stands" / "day" / "run"
    fresh.note(folder)
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").touch()
    return folder


def test_an_unused_folder_goes_with_its_new_parents(noted, tmp_path):
    (noted / "checkpoints").mkdir()
    fresh.remove_unused(noted)
    assert list(tmp_path.iterdir()) == [tmp_path / "stands"]
    assert list((tmp_path / "stands").iterdir()) == []


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/one.safetensors", ".own"])
def test_a_file_keeps_the_folder_whole(noted, name):
    (noted / name).parent.mkdir(exist_ok=True)
    (noted / name).touch()
    fresh.remove_unused(noted)
    assert (noted / name).exists()
    assert (noted / ".hydra" / "config.yaml").exists()


def test_of_a_folder_that_stood_only_hydras_part_goes(noted, tmp_path):
    stood = tmp_path / "mine"
    stood.mkdir()
    fresh.note(stood)
    (stood / ".hydra").mkdir()
    fresh.remove_unused(stood)
    assert list(stood.iterdir()) == []


def test_what_was_not_noted_is_nobodys(tmp_path, noted):
    (tmp_path / "other" / ".hydra").mkdir(parents=True)
    fresh.remove_unused(tmp_path / "other")
    assert (tmp_path / "other" / ".hydra").exists()


def test_neighbours_keep_the_parent(noted):
    (noted.parent / "another").mkdir()
    (noted.parent / "another" / "report.html").touch()
    fresh.remove_unused(noted)
    assert [path.name for path in noted.parent.iterdir()] == ["another"]


def test_a_folder_that_is_at_work_keeps_its_lock(noted):
    with locked(noted):
        fresh.remove_unused(noted)
        assert {path.name for path in noted.iterdir()} == {".hydra", ".lock"}
    fresh.remove_unused(noted)
    assert not noted.exists()
