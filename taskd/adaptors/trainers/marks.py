"""A rank's progress in work that is to be done once, as numbers in shared memory that outlives `kill -9`.

Rules:

1. Work that follows a commit is done again after a fault. A number identifies the part that was started before. So
   lines are not written twice, and a checkpoint's own file of the first time is not taken for another one's.
2. A number is stored before the work is started. So a line may be missing if the process is killed in between, and is
   never there twice.
3. The agent keeps that memory, with the rank's positions. Without it, or where it cannot be used, the numbers die with
   the process.
"""

import logging
import mmap
import os
from pathlib import Path
from typing import Final

from taskd.runtime.folders.nameless import open_kept

_log = logging.getLogger(__name__)
PLACES: Final = 64
_BYTES: Final = PLACES * 8


class Marks:
    """Numbers by their places. `anew`: the job starts and nothing was started before. `page`: of the memory."""

    def __init__(self, path: Path | None, *, anew: bool, page: int = 0) -> None:
        memory: mmap.mmap | bytearray = bytearray(_BYTES)
        if path is not None:
            try:
                memory = _mapped(path, page)
            except OSError as error:
                _log.warning("what this process has logged and saved is not known to its successor: %s", error)
            if anew:
                memory[:] = bytes(_BYTES)
        self._numbers = memoryview(memory).cast("q")

    def __getitem__(self, place: int) -> int:
        return self._numbers[place]

    def __setitem__(self, place: int, number: int) -> None:
        self._numbers[place] = number


def _mapped(path: Path, page: int) -> mmap.mmap:
    at = page * mmap.ALLOCATIONGRANULARITY
    descriptor = open_kept(path)
    try:
        os.posix_fallocate(descriptor, at, _BYTES)
        return mmap.mmap(descriptor, _BYTES, offset=at)
    finally:
        os.close(descriptor)
