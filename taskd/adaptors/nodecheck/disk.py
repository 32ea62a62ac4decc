"""The check that the run directory takes a file, keeps it and gives it back; and its speed.

The file has no name (or loses it before anything is written), so nothing is left whatever happens.
"""

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from taskd.errors import ProbeError

_CHUNK: Final = bytes(range(256)) * 4096
_CHUNKS: Final = 4
_REMEDIES: Final = {
    errno.ENOSPC: "the disk is full: free some space, or let TASKD_RUN_DIR name another place",
    errno.EDQUOT: "the quota is used up: free some space, or let TASKD_RUN_DIR name another place",
    errno.EROFS: "it is mounted read-only: an error may have made it so (see dmesg); mount it writable",
    errno.EIO: "the disk fails: see dmesg",
    errno.ENOENT: "no such directory: create it, or let TASKD_RUN_DIR name another one",
    errno.EACCES: "this user may not write there: change its mode, or let TASKD_RUN_DIR name another one",
}


def disk(run_dir: str) -> float:
    """Return the rate of writing and syncing, in 10**6 bytes a second.

    Raises:
        ProbeError: a file cannot be written, or comes back changed.
    """
    try:
        descriptor = _nameless(Path(run_dir))
        try:
            return _measure(descriptor, run_dir)
        finally:
            os.close(descriptor)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "look at its disk and mount")
        raise ProbeError(
            f"no file can be written in {run_dir} ({error.strerror}), expected {_CHUNKS * len(_CHUNK) >> 20} MiB to "
            f"be: {remedy}"
        ) from error


def _nameless(directory: Path) -> int:
    with contextlib.suppress(OSError):  # some file systems have no nameless files
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    descriptor, name = tempfile.mkstemp(prefix=".taskd-check-", dir=directory)
    os.unlink(name)
    return descriptor


def _measure(descriptor: int, run_dir: str) -> float:
    start_s = time.perf_counter()
    for _ in range(_CHUNKS):
        _write(descriptor)
    os.fsync(descriptor)
    elapsed_s = time.perf_counter() - start_s
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # to be read from the disk, where that is possible
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        for number in range(_CHUNKS):
            if file.read(len(_CHUNK)) != _CHUNK:
                raise ProbeError(
                    f"what was written in {run_dir} came back changed, in MiB {number} of {_CHUNKS}; replace the disk"
                )
    return _CHUNKS * len(_CHUNK) / elapsed_s / 1e6


def _write(descriptor: int) -> None:
    rest = memoryview(_CHUNK)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
