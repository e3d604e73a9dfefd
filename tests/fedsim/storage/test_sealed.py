"""A state is whole or absent, and the newest whole one is found."""

import errno
import os

import numpy as np
import pytest

from fedsim.errors import ConfigError
from fedsim.storage import sealed
from fedsim.storage.sealed import ARRAYS, MANIFEST, VALUES, SealedStates


@pytest.fixture
def states(tmp_path):
    return SealedStates(tmp_path / "resume")


@pytest.fixture
def said():
    return []


def state(number):
    return {"number": number, "weights": np.full(1000, float(number), dtype=np.float32)}


def test_the_two_newest_are_kept_and_the_newest_is_found(states, said):
    assert states.newest(said.append) is None
    for number in (1, 2, 100_000):
        assert states.write(number, state(number)) > 4000
    assert states.numbers() == [2, 100_000]
    number, found = states.newest(said.append)
    assert number == found["number"] == 100_000
    assert found["weights"].tobytes() == state(100_000)["weights"].tobytes()
    assert said == []


def damage(path, how):
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "short": content[:-3], "flipped": content[:-9] + b"\x07" + content[-8:]}[how])


@pytest.mark.parametrize("name", [ARRAYS, VALUES, MANIFEST])
@pytest.mark.parametrize("how", ["missing", "empty", "short", "flipped"])
def test_a_damaged_one_is_said_and_the_one_before_it_found(states, said, name, how):
    for number in (1, 2):
        states.write(number, state(number))
    damage(states.root / "round-00002" / name, how)
    assert states.newest(said.append)[0] == 1
    assert len(said) == 1
    assert "round-00002 is damaged" in said[0]
    assert states.numbers() == [1]
    damage(states.root / "round-00001" / name, how)
    with pytest.raises(ConfigError, match="every resume point in it is damaged"):
        states.newest(said.append)
    assert states.numbers() == [1]


def test_what_is_not_sealed_does_not_count(states, said):
    states.write(1, state(1))
    (states.root / "partial").mkdir()
    (states.root / "pending").mkdir()
    (states.root / "round-1").mkdir()
    assert states.numbers() == [1]
    states.write(2, state(2))
    assert states.newest(said.append)[0] == 2


def test_a_number_written_again_replaces_the_first(states, said):
    states.write(1, state(1))
    states.write(1, {"number": "again"})
    assert states.newest(said.append) == (1, {"number": "again"})


@pytest.mark.parametrize("where", ["save_file", "sync", "file_sha256"])
def test_a_full_disk_leaves_the_earlier_ones(states, said, where, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    states.write(1, state(1))
    monkeypatch.setattr(sealed, where, full)
    with pytest.raises(OSError, match="No space left"):
        states.write(2, state(2))
    monkeypatch.undo()
    assert [path.name for path in states.root.iterdir()] == ["round-00001"]
    assert states.newest(said.append)[0] == 1


def test_a_header_that_nobody_could_read_is_refused(states, monkeypatch):
    monkeypatch.setattr(sealed, "LONGEST_HEADER", 10)
    with pytest.raises(ValueError, match="1 arrays are too many"):
        states.write(1, state(1))
    assert states.numbers() == []


def test_what_other_versions_wrote_is_said(states, said, monkeypatch):
    monkeypatch.setitem(sealed.VERSIONS, "torch", "1.0")
    states.write(1, state(1))
    monkeypatch.undo()
    assert states.newest(said.append)[0] == 1
    assert len(said) == 1
    assert "was written by torch 1.0: from here on the bits may be others" in said[0]
