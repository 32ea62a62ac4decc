"""A file to read, of whoever, where anything may lie: nobody is to wait for a pipe or a device."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_record(path: Path) -> BinaryIO:
    """A file to read. Raises `OSError`, also for what is no file, and `ValueError` for what is no path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, expected a file", str(path))
    return open(descriptor, "rb")
