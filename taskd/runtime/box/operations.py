"""Collectives and communicators as a process's black box shows them.

Rules:

1. A communicator's id is the same on all its ranks, and so is the number of each of its collectives: who has entered
   number 17 and who has not is a comparison of two rings.
2. gloo's operations end when the data are there. Those of NCCL and HCCL end when the host has enqueued them.
3. Transfers between two ranks are not numbered. gloo's are seen when somebody waits for them.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final

from taskd.core.diagnosis.operation import Operation
from taskd.runtime.box.shim import core, interface, told

_BACKEND_SHIFT = 8
_MOST_COMMUNICATORS = 128


class Backend(IntEnum):
    """Whose function was called."""

    OTHER = 0
    GLOO = 1
    NCCL = 2
    HCCL = 3


@dataclass(frozen=True, slots=True)
class BoxEvent:
    """One operation noted in the ring.

    Attributes:
        ticket: rises with each event of the process.
        left_ns: 0 while it is open.
        comm: id of the communicator; 0 if it is not known.
        number: which collective of the communicator, from 1; 0 if it is none.
        bytes: of one rank's part; 0 if it is not known.
        op: see `operation` and `backend`.
        dtype: the backend's own number.
        peer: root or partner; -1 if there is none or it is not known.

    """

    ticket: int
    entered_ns: int
    left_ns: int
    comm: int
    number: int
    bytes: int
    op: int
    dtype: int
    tid: int
    peer: int

    @property
    def operation(self) -> Operation:
        """What was called; `OTHER` for numbers of a program's own."""
        kind = self.op & ((1 << _BACKEND_SHIFT) - 1)
        return Operation(kind) if kind in _OPERATIONS and self.backend else Operation.OTHER

    @property
    def backend(self) -> Backend:
        """Whose it is; `OTHER` for a program's own."""
        backend = self.op >> _BACKEND_SHIFT
        return Backend(backend) if backend in _BACKENDS else Backend.OTHER


_OPERATIONS = frozenset(Operation)
_BACKENDS = frozenset(Backend)


@dataclass(frozen=True, slots=True)
class BoxCommunicator:
    """One communicator of a process. `number` is of its newest collective; `rank` is that in it, of `ranks`; both
    are -1 if not known.
    """

    id: int
    backend: Backend
    rank: int
    ranks: int
    number: int
    opened_ns: int
    closed: bool


_RING: Final = 1024
"""Events that a box keeps."""
_RAW: Final = struct.Struct("=QqqQQQIIIi")
"""A `struct taskd_event`, whose fields are those of `BoxEvent` in the same order."""
_LEFT: Final = 2
_COMM: Final = 3
_KIND: Final = 6
"""The operation, with the type of data in the same word."""
NCCL_KERNEL: Final = Backend.NCCL << _BACKEND_SHIFT | Operation.KERNEL
"""`BoxEvent.op` of the times in which NCCL's kernels run."""


def _ring(handle: Any, *places: int) -> tuple[memoryview, list[list[int]]]:
    """The events of an open box, newest first, and the words at these places of each: an Event for each costs 1 ms."""
    raw = interface().new("struct taskd_event[]", _RING)
    count = told(core().taskd_box_events(handle, raw, _RING))
    data = memoryview(interface().buffer(raw, count * _RAW.size))
    words = data.cast("B").cast("Q")
    return data, [words[place :: _RAW.size // words.itemsize].tolist() for place in places]


def _unpacked(data: memoryview, place: int) -> BoxEvent:
    return BoxEvent(*_RAW.unpack_from(data, place * _RAW.size))


def newest_events(handle: Any, each: int, most: int) -> list[BoxEvent]:
    """Of an open box, the newest in front: at most so many of each communicator and altogether, and all open ones.

    What the program itself has noted, without a communicator, is left out.
    """
    data, (left, comms) = _ring(handle, _LEFT, _COMM)
    counts: dict[int, int] = {}
    found: list[BoxEvent] = []
    for place, (left_ns, comm) in enumerate(zip(left, comms, strict=True)):
        number = counts.get(comm, 0)
        if comm and (not left_ns or (number < each and len(found) < most)):
            counts[comm] = number + 1
            found.append(_unpacked(data, place))
    return found


def newest_kernel(handle: Any) -> BoxEvent | None:
    """Of an open box, the newest time in which kernels of NCCL ran; None if none is noted."""
    data, (kinds,) = _ring(handle, _KIND)
    return _unpacked(data, kinds.index(NCCL_KERNEL)) if NCCL_KERNEL in kinds else None


def communicator_id(name: str) -> int:
    """The id of a communicator that was formed under this name (`Recorder.naming`)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1


def event(raw: Any) -> BoxEvent:
    """From a `struct taskd_event`."""
    return BoxEvent(*(getattr(raw, name) for name in BoxEvent.__dataclass_fields__))


def read_communicators(handle: Any) -> list[BoxCommunicator]:
    """Of an open box, the one that was opened first in front."""
    raw = interface().new("struct taskd_comm[]", _MOST_COMMUNICATORS)
    count = told(core().taskd_box_comms(handle, raw, _MOST_COMMUNICATORS))
    found = [
        BoxCommunicator(
            id=one.id,
            backend=Backend(one.backend) if one.backend in _BACKENDS else Backend.OTHER,
            rank=one.rank,
            ranks=one.ranks,
            number=one.number,
            opened_ns=one.opened_ns,
            closed=bool(one.closed),
        )
        for one in raw[0:count]
    ]
    return sorted(found, key=lambda one: one.opened_ns)
