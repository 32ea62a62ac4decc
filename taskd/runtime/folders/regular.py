"""Opening of any user's files for reading, anywhere: a pipe or a device must not block."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def expect_file(found: os.stat_result, path: Path) -> None:
    """Raise `OSError` unless `found` is a regular file."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, expected a file", str(path))


def open_record(path: Path, expect: Callable[[os.stat_result, Path], None] = expect_file) -> BinaryIO:
    """Open a file to read. Raises `OSError`, also for no regular file (`expect`), and `ValueError` for no path."""
    expect(os.stat(path), path)  # opening a device may have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        expect(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")
