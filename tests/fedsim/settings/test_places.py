"""What is said of a disk that refuses to take something."""

import errno
from pathlib import Path

import pytest

from fedsim.settings.places import once_mended, write_refused


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "run: No space left on device"),
        (OSError(errno.EROFS, "Read-only file system", "run/file"), "run/file: Read-only file system"),
        (PermissionError(errno.EACCES, "Permission denied", "run/resume/file"), "run/resume/file: Permission denied"),
        (PermissionError(errno.EPERM, "Operation not permitted", "elsewhere/file"), ""),  # none of the run's files
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "run/file"), ""),
        (ValueError("something else"), ""),
    ],
)
def test_where_and_what(error, said):
    assert write_refused(error, Path("run")) == said


def test_what_another_try_takes():
    assert once_mended(OSError(errno.EDQUOT, "Disk quota exceeded")) == "With more room"
    assert once_mended(PermissionError(errno.EACCES, "Permission denied")) == "Once it can be written to"
