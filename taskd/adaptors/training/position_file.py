"""A small file in shared memory that outlives `kill -9`: where one rank stood in its random numbers and in its data.

Rules:

1. Five slots of equal size. Two take turns for committed steps, since the step that the world goes back to may be the
   last or the last but one that this rank had committed. Three take turns for tentative ones: what step N + 1 will have
   been if a peer commits it. Of one step, the entry that was written last counts; so a commit that finds its tentative
   entry to be right need not write another.
2. A slot is written as: sequence odd, body, checksum, sequence even. A reader accepts only an even sequence and a right
   checksum, so a slot that a dying process had half written is not seen. Sequences rise over all slots.
3. One writer (the rank's process), readers when that process is dead or the same process itself.
"""

import enum
import mmap
import os
import stat
import struct
from zlib import adler32

from taskd.errors import RestoreError

SLOT_BYTES = 64 * 1024
SLOTS = 5
_HEADER = struct.Struct("=4q")  # sequence, step, length of the payload, checksum over step and payload
CAPACITY_BYTES = SLOT_BYTES - _HEADER.size


class Slot(enum.Enum):
    """What a payload stands for."""

    COMMITTED = 0  # kept for the two newest committed steps
    TENTATIVE = 2  # kept for the three newest


_COMMITTED = Slot.COMMITTED
_MASK = 0xFFFF_FFFF


class PositionFile:
    """The file at `path`, mapped; made with mode 0600 if it is not there.

    Raises:
        RestoreError: the path cannot be used: a link, another user's file, of another size, or no memory left.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        size = SLOT_BYTES * SLOTS
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RestoreError(
                f"position file {path} cannot be opened: {error}; it belongs into a directory of this user"
            ) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size not in (0, size):
                raise RestoreError(
                    f"position file {path} has mode {status.st_mode:o}, owner {status.st_uid} and "
                    f"{status.st_size} bytes; expected a regular file of user {os.geteuid()} with {size} bytes: "
                    "remove it"
                )
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            raise RestoreError(f"position file {path} cannot be mapped: {error}; is the shared memory full?") from error
        finally:
            os.close(descriptor)
        heads = [memoryview(self._map)[at : at + _HEADER.size].cast("q") for at in range(0, size, SLOT_BYTES)]
        self._heads = heads
        self._sequence = max(head[0] | 1 for head in heads) + 1

    def write(self, slot: Slot, step: int, payload: bytes) -> None:
        """Put `payload` down for `step`. ValueError if it is longer than `CAPACITY_BYTES`."""
        length = len(payload)
        if length > CAPACITY_BYTES:
            raise ValueError(f"a position of {length} bytes does not fit into {CAPACITY_BYTES}")
        number = step & 1 if slot is _COMMITTED else 2 + step % 3
        head = self._heads[number]
        head[0] = self._sequence + 1
        start = number * SLOT_BYTES + _HEADER.size
        self._map[start : start + length] = payload
        head[1] = step
        head[2] = length
        head[3] = adler32(payload, step & _MASK)
        self._sequence += 2
        head[0] = self._sequence

    def read(self) -> dict[int, bytes]:
        """Return the payload of each step that is there, the newest one if there are several."""
        found: list[tuple[int, int, bytes]] = []
        for at in range(0, SLOT_BYTES * SLOTS, SLOT_BYTES):
            sequence, step, length, checksum = _HEADER.unpack_from(self._map, at)
            if sequence <= 0 or sequence & 1 or not 0 <= length <= CAPACITY_BYTES:
                continue
            payload = self._map[at + _HEADER.size : at + _HEADER.size + length]
            if adler32(payload, step & _MASK) == checksum:
                found.append((sequence, step, payload))
        return {step: payload for _, step, payload in sorted(found)}

    def close(self) -> None:
        """Unmap the file; it stays where it is."""
        for head in self._heads:
            head.release()
        self._map.close()
