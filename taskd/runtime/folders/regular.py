"""A file to read, of whoever, where anything may lie: nobody is to wait for a pipe or a device."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def expect_file(found: os.stat_result, path: Path) -> None:
    """Raise `OSError` for anything else."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, expected a file", str(path))


def open_record(path: Path, expect: Callable[[os.stat_result, Path], None] = expect_file) -> BinaryIO:
    """A file to read. Raises `OSError`, also for what is no file (`expect`), and `ValueError` for what is no path."""
    expect(os.stat(path), path)  # to open a device may do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        expect(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")
