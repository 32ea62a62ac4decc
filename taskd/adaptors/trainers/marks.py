"""How far a rank has come with what is to be done once, as numbers in shared memory that outlives `kill -9`.

Rules:

1. What follows a commit is done again after a fault. What was begun there before is known by its number: lines are not
   written twice, and a checkpoint's own file of the first time is not taken for another one's.
2. A number is put down before the work is begun. So a line may be missing if the process is killed in between, and is
   never there twice.
3. The file lies beside the rank's positions and goes with them. Without it the numbers die with the process.
"""

import mmap
import os
from pathlib import Path
from typing import Final

PLACES: Final = 64
_BYTES: Final = PLACES * 8


class Marks:
    """Numbers by their places. `anew` says that the job begins: nothing was begun before.

    Raises:
        OSError: the file cannot be used.
    """

    def __init__(self, path: Path | None, *, anew: bool) -> None:
        memory: mmap.mmap | bytearray = bytearray(_BYTES)
        if path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if anew else 0)
            descriptor = os.open(path, flags, 0o600)
            try:
                os.ftruncate(descriptor, _BYTES)
                memory = mmap.mmap(descriptor, _BYTES)
            finally:
                os.close(descriptor)
        self._numbers = memoryview(memory).cast("q")

    def __getitem__(self, place: int) -> int:
        return self._numbers[place]

    def __setitem__(self, place: int, number: int) -> None:
        self._numbers[place] = number
