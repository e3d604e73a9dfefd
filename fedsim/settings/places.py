"""Folders and files that settings name: whether they are there is known before any library is imported."""

import errno
import os
from pathlib import Path

from fedsim.errors import ConfigError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""What a disk says that takes no more, and a limit on the size of files."""

FORBIDDEN = (errno.EACCES, errno.EPERM)
"""What is said of a file that is another user's."""


def class_folders(path: object) -> Path:
    """The folder that `data.path` names.

    Raises:
        ConfigError: none is named, or there is none.
    """
    if not path:
        raise ConfigError("data.path", path, "a folder with one folder per class, as in data.path=~/pictures")
    root = Path(str(path)).expanduser()
    if not root.is_dir():
        raise ConfigError("data.path", root, fault="is a file, not a folder" if root.exists() else "no such folder")
    return root


def unwritable(error: OSError) -> str:
    """What a folder must be that cannot be made or written to."""
    reason = "this is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
    return f"a folder that can be written to ({reason})"


def write_refused(error: BaseException, folder: Path) -> str:
    """What a disk said that takes no more, or a file in the folder that is another user's, and where.

    Empty for any other error.
    """
    if not isinstance(error, OSError) or error.errno not in (*FULL, *FORBIDDEN):
        return ""
    place = Path(os.fsdecode(error.filename or folder))
    if error.errno in FORBIDDEN and folder.absolute() not in place.absolute().parents:
        return ""
    return f"{place}: {error.strerror}"


def once_mended(error: BaseException) -> str:
    """What it takes for another try to go on where `write_refused` has words for the error."""
    full = isinstance(error, OSError) and error.errno in FULL
    return "With more room" if full else "Once it can be written to"


def check_model_file(path: object) -> None:
    """Raises ConfigError where `model.checkpoint` names a file that is not there; None: it names none."""
    if path is not None and not Path(str(path)).is_file():
        raise ConfigError("model.checkpoint", path, fault="there is no such file")
