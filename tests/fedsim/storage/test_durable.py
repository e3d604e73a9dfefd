"""Content is whole or absent, on a full disk too."""

import errno
import os

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedsim.storage import durable
from fedsim.storage.durable import append_whole, disk_errors, replacing, sync_all, write_whole


@pytest.fixture
def full_disk(monkeypatch):
    """Takes three bytes more."""

    def write(descriptor, content):
        if len(content) <= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, content[:3])

    real = os.write
    monkeypatch.setattr(durable.os, "write", write)


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path, full_disk):
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    with pytest.raises(OSError, match="No space left"):
        append_whole(path, b"another\n")
    assert path.read_bytes() == b"one\n"


def test_lines_are_added(tmp_path):
    for line in (b"one\n", b"another\n"):
        append_whole(tmp_path / "lines", line)
    assert (tmp_path / "lines").read_bytes() == b"one\nanother\n"


def test_a_write_that_the_disk_refuses_names_the_file(tmp_path, full_disk):
    """As opening it would: who reads the error has to know which disk is full."""
    with pytest.raises(OSError, match="No space left") as refused:
        append_whole(tmp_path / "lines", b"another\n")
    assert refused.value.filename == str(tmp_path / "lines")
    with pytest.raises(OSError, match="No space left") as refused, replacing(tmp_path / "page"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert refused.value.filename == str(tmp_path / "page.partial")


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(durable, "sync", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk")))
    with pytest.raises(OSError, match="bad disk"):
        write_whole(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_safetensors_own_word_for_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path / "none" / "x"):
        save_file({"a": np.zeros(1)}, tmp_path / "none" / "x")
    with pytest.raises(SafetensorError, match="else"), disk_errors(tmp_path):
        raise SafetensorError("something else")


def test_everything_is_forced_to_disk_where_syncfs_is_missing_too(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(durable.os, "sync", lambda: called.append("sync"))
    sync_all(tmp_path)
    monkeypatch.setattr(durable.ctypes, "CDLL", lambda *_, **__: object())
    sync_all(tmp_path)
    assert called[-1:] == ["sync"]
    with pytest.raises(OSError, match="No such file"):
        monkeypatch.undo() or sync_all(tmp_path / "none")
