"""Memory that the agent keeps, and that outlives `kill -9`: where one rank stood in its random numbers and its data.

Rules:

1. Five slots of equal size. Two take turns for committed steps, since the step that the world goes back to may be the
   last or the last but one that this rank had committed. Three take turns for tentative ones: what step N + 1 will have
   been if a peer commits it. Of one step, the entry that was written last counts.
2. A slot is written as: sequence odd, body, sequence even. A reader accepts only an even sequence that is the same
   after it has read the body, so a slot that a dying process had half written is not seen. Sequences rise over all
   slots.
3. One writer (the rank's process), readers when that process is dead or the same process itself.
4. Writing is done twice in each step, in caches that the step has emptied: there, an assignment to a slice of memory
   takes 1 us, a call through cffi or ctypes 10, and joining the buffers first 10 more. Where it can be, it is done by
   the core instead (`taskd.runtime.worker.pulse`, `csrc/pulse.c`), in the same way.
5. The agent's memory cannot be cut. A file in its place that somebody cuts costs what stands in it, not its writer.
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
    """What a payload stands for."""

    COMMITTED = 0  # kept for the two newest committed steps
    TENTATIVE = 2  # kept for the three newest


@dataclasses.dataclass(frozen=True)
class PositionEntry:
    """What is put down of one step. `sequence` rises with each entry."""

    sequence: int
    kind: PositionKind
    step: int
    payload: bytes


_COMMITTED = PositionKind.COMMITTED


class PositionFile:
    """The memory at `path`, mapped; a file of mode 0600 is made if there is none.

    Raises:
        RestoreError: the path cannot be used: a link, another user's file, of another size, or no memory left.
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
        self._copies: dict[int, list[tuple[memoryview, Buffer]]] = {}  # of each slot: where to, and from where

    @property
    def target(self) -> Target:
        """For a `Pulse`, which writes the same slots in the same way. The file cannot be closed any more."""
        return Target(self._map, SLOT_BYTES, self._sequence)

    def write(self, slot: PositionKind, step: int, rng: Sequence[Buffer], data: bytes = b"") -> None:
        """Put down for `step` what the buffers show now, and the data position.

        Costs least if `rng` is the very object of the last call. ValueError if all of it takes more than
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
        """Return the payload of each step that is there, the newest one if there are several."""
        return {one.step: one.payload for one in sorted(self.entries(), key=lambda one: one.sequence)}

    def entries(self) -> list[PositionEntry]:
        """Return all that is there."""
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
