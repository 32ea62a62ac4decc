"""Position of one rank in its random numbers and its data, in memory of the agent that outlives `kill -9`.

Rules:

1. There are five slots of equal size. Two alternate for committed steps, since the world may go back to the last step
   that this rank had committed, or to the one before. Three alternate for tentative steps: the position of step N + 1
   in case a peer commits it. If a step has several entries, the one that was written last counts.
2. A slot is written as: sequence odd, body, sequence even. A reader accepts only an even sequence that is the same
   after it has read the body. So it ignores a slot that a dying process has half written. Sequences rise over all
   slots.
3. There is one writer, the rank's process. Readers read when that process is dead, or are that process itself.
4. Each step writes twice, in caches that it has emptied. There, an assignment to a slice of memory takes 1 us, a call
   through cffi or ctypes 10, and joining the buffers first 10 more. Where possible the core writes instead
   (`taskd.runtime.worker.pulse`, `csrc/pulse.c`), in the same way.
5. The agent's memory cannot be truncated. If a file stands in its place and is truncated, its content is lost, but the
   writer survives.
"""

import dataclasses
import enum
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from taskd.adaptors.training.positions.payload import head_of
from taskd.errors import RestoreError
from taskd.runtime.folders.nameless import has_name, open_kept
from taskd.runtime.worker.pulse import Buffer, Target, guard

SLOT_BYTES = 64 * 1024
SLOTS = 5
_HEADER = struct.Struct("=3q")  # sequence, step, length of the payload
CAPACITY_BYTES = SLOT_BYTES - _HEADER.size


class PositionKind(enum.Enum):
    """Kind of a payload."""

    COMMITTED = 0  # kept for the two newest committed steps
    TENTATIVE = 2  # kept for the three newest


@dataclasses.dataclass(frozen=True)
class PositionEntry:
    """Record of one step. `sequence` rises with each entry."""

    sequence: int
    kind: PositionKind
    step: int
    payload: bytes


_COMMITTED = PositionKind.COMMITTED


class PositionFile:
    """Mapped memory at `path`; a file of mode 0600 is made if there is none.

    Raises:
        RestoreError: the path cannot be used: it is a link, another user's file or of another size, or no memory is
            left.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        size = SLOT_BYTES * SLOTS
        if has_name(Path(path)):
            kept_by, remedy, place = "it belongs into a directory of this user", ": remove it", str(Path(path).parent)
        else:
            kept_by, remedy = "it is memory of this rank's agent, which has ended, or does not let this process in", ""
            place = "the memory of this machine, or of its container,"
        try:
            descriptor = open_kept(Path(path))
        except OSError as error:
            raise RestoreError(f"position file {path} cannot be opened: {error}; {kept_by}") from error
        try:
            status = os.fstat(descriptor)
            if status.st_size not in (0, size):
                raise RestoreError(f"position file {path} has {status.st_size} bytes, expected {size}{remedy}")
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            raise RestoreError(f"position file {path} cannot be mapped: {error}; is {place} full?") from error
        finally:
            os.close(descriptor)
        self._unguard = guard(self._map)
        self._bytes = memoryview(self._map)
        self._heads = [self._bytes[at : at + _HEADER.size].cast("q") for at in range(0, size, SLOT_BYTES)]
        self._sequence = memoryview(bytearray(8)).cast("q")
        self._sequence[0] = max(head[0] | 1 for head in self._heads) + 1
        self._rng: Sequence[Buffer] | None = None
        self._rng_bytes = 0
        self._copies: dict[int, list[tuple[memoryview, Buffer]]] = {}  # for each slot: pairs of target and source

    @property
    def target(self) -> Target:
        """Target for a `Pulse`, which writes the same slots in the same way. The file cannot be closed any more."""
        return Target(self._map, SLOT_BYTES, self._sequence)

    def write(self, slot: PositionKind, step: int, rng: Sequence[Buffer], data: bytes = b"") -> None:
        """Record, for `step`, the present content of the buffers and the data position.

        Costs least if `rng` is the same object as in the last call. Raises `ValueError` if the record exceeds
        `CAPACITY_BYTES`.
        """
        number = step & 1 if slot is _COMMITTED else 2 + step % 3
        if rng is not self._rng:
            self._rng = None
            self._copies.clear()
        copies = self._copies.get(number) or self._lay_out(number, rng)
        head = self._heads[number]
        self._sequence[0] = sequence = self._sequence[0] + 2
        length = self._rng_bytes
        if data:
            start = number * SLOT_BYTES + _HEADER.size + length
            length += len(data)
            if length > CAPACITY_BYTES:
                raise ValueError(f"a position of {length} bytes does not fit into {CAPACITY_BYTES}")
            head[0] = sequence - 1
            self._bytes[start : start + len(data)] = data
        else:
            head[0] = sequence - 1
        for target, source in copies:
            target[:] = source
        head[1] = step
        head[2] = length
        head[0] = sequence

    def _lay_out(self, number: int, rng: Sequence[Buffer]) -> list[tuple[memoryview, Buffer]]:
        parts = (head_of(rng), *rng)
        total = sum(map(len, parts))
        if total > CAPACITY_BYTES:
            raise ValueError(f"a position of {total} bytes does not fit into {CAPACITY_BYTES}")
        copies: list[tuple[memoryview, Buffer]] = []
        at = number * SLOT_BYTES + _HEADER.size
        for part in parts:
            if len(part):
                copies.append((self._bytes[at : at + len(part)], part))
            at += len(part)
        self._rng, self._rng_bytes = rng, total
        self._copies[number] = copies
        return copies

    def read(self) -> dict[int, bytes]:
        """Return the payload of each recorded step, the newest one if there are several."""
        return {one.step: one.payload for one in sorted(self.entries(), key=lambda one: one.sequence)}

    def entries(self) -> list[PositionEntry]:
        """Return all entries that were written completely."""
        found: list[PositionEntry] = []
        for slot in range(SLOTS):
            at = slot * SLOT_BYTES
            sequence, step, length = _HEADER.unpack_from(self._map, at)
            if sequence <= 0 or sequence & 1 or not 0 <= length <= CAPACITY_BYTES:
                continue
            payload = self._map[at + _HEADER.size : at + _HEADER.size + length]
            if _HEADER.unpack_from(self._map, at)[0] == sequence:
                kind = _COMMITTED if slot < PositionKind.TENTATIVE.value else PositionKind.TENTATIVE
                found.append(PositionEntry(sequence, kind, step, payload))
        return found

    def close(self) -> None:
        """Unmap the file; it stays where it is."""
        self._copies.clear()
        for view in (*self._heads, self._bytes):
            view.release()
        self._unguard()
        self._map.close()
