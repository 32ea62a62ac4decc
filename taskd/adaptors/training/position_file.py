"""A small file in shared memory that outlives `kill -9`: where one rank stood in its random numbers and in its data.

Rules:

1. Three slots of equal size. Two take turns for committed steps, since the step that the world goes back to may be the
   last or the last but one that this rank had committed. The third is tentative: what step N + 1 will have been if a
   peer commits it.
2. A slot is written as: sequence odd, body, checksum, sequence even. A reader accepts only an even sequence and a right
   checksum, so a slot that a dying process had half written is not seen.
3. One writer (the rank's process), readers when that process is dead or the same process itself.
"""

import enum
import mmap
import os
import stat
import struct
import zlib

from taskd.errors import RestoreError

SLOT_BYTES = 64 * 1024
_HEADER = struct.Struct("<QqII")  # sequence, step, length of the payload, checksum over step and payload
_SEQUENCE = struct.Struct("<Q")
_BODY = struct.Struct("<qII")
_STEP = struct.Struct("<q")
CAPACITY_BYTES = SLOT_BYTES - _HEADER.size


class Slot(enum.Enum):
    """What a payload stands for."""

    COMMITTED = 0  # kept for the two newest committed steps
    TENTATIVE = 2


class PositionFile:
    """The file at `path`, mapped; made with mode 0600 if it is not there.

    Raises:
        RestoreError: the path cannot be used: a link, another user's file, of another size, or no memory left.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        size = SLOT_BYTES * 3
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

    def write(self, slot: Slot, step: int, payload: bytes) -> None:
        """Put `payload` down for `step`. ValueError if it is longer than `CAPACITY_BYTES`."""
        length = len(payload)
        if length > CAPACITY_BYTES:
            raise ValueError(f"a position of {length} bytes does not fit into {CAPACITY_BYTES}")
        at = SLOT_BYTES * (slot.value if slot is Slot.TENTATIVE else step & 1)
        memory = self._map
        sequence = _SEQUENCE.unpack_from(memory, at)[0] | 1
        _SEQUENCE.pack_into(memory, at, sequence)
        start = at + _HEADER.size
        memory[start : start + length] = payload
        _BODY.pack_into(memory, at + 8, step, length, zlib.crc32(payload, zlib.crc32(_STEP.pack(step))))
        _SEQUENCE.pack_into(memory, at, sequence + 1)

    def read(self) -> dict[int, bytes]:
        """Return the payload of each step that is there; of one step, a committed one before a tentative one."""
        found: dict[int, bytes] = {}
        for at in (SLOT_BYTES * Slot.TENTATIVE.value, 0, SLOT_BYTES):
            sequence, step, length, checksum = _HEADER.unpack_from(self._map, at)
            if sequence == 0 or sequence & 1 or length > CAPACITY_BYTES:
                continue
            payload = self._map[at + _HEADER.size : at + _HEADER.size + length]
            if zlib.crc32(payload, zlib.crc32(_STEP.pack(step))) == checksum:
                found[step] = payload
        return found

    def close(self) -> None:
        """Unmap the file; it stays where it is."""
        self._map.close()
