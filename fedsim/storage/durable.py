"""Files and the names in folders, forced to disk: what a machine that loses power finds again."""

import ctypes
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path

from safetensors import SafetensorError

from fedsim.errors import ConfigError, RunError

logger = getLogger(__name__)


def sync(path: Path) -> None:
    """Force a file's content, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Force everything that was written to the folder's file system to disk: many small files in one go."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:  # no Linux
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """The name of a file to write in the block, which takes the place of `path` at its end: whole or not at all.

    Args:
        durable: forced to disk before it takes the place; False for what can be made again.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with disk_errors(partial):
            yield partial
            if durable:
                sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all."""
    with replacing(path, durable=durable) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> Path:
    """Write what can be made again, whole or not at all; not forced to disk.

    A file's name may hold bytes that are no character; they must not cost a page that names it.
    """
    write_whole(path, text.encode(errors="backslashreplace"), durable=False)
    return path


def append_whole(path: Path, content: bytes) -> None:
    """Add to a file's end and force it to disk; where that fails the file is as it was."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        length = os.fstat(descriptor).st_size
        try:
            with disk_errors(path):
                left = memoryview(content)
                while left:
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, length)
            raise
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, key: str = "run_dir") -> Iterator[None]:
    """Lock the folder against other processes for the block; the lock goes with the process, however it ends.

    Args:
        key: the setting that names the folder.

    Raises:
        ConfigError: another process is at work in the folder.
        RunError: the block found that the folder is no longer there.
    """
    path = folder / ".lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(key, folder, fault="wait: another process is at work in this folder") from None
        except OSError as error:
            logger.debug("%s: no locks on this file system: %s", folder, error)
        try:
            yield
        except OSError as error:
            if path.exists() and os.fstat(file.fileno()).st_nlink:
                raise
            words = "this folder was removed or moved while the command was at work in it"
            raise RunError(f"{folder}: {words}") from error


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """What safetensors has to say of a full disk, as the OSError that it is; Python's own names the file, too."""
    try:
        yield
    except OSError as error:  # of a write, and not of opening the file
        if error.filename is None:
            error.filename = str(path)
        raise
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
