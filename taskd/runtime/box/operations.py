"""Collectives and communicators in a process's black box.

Rules:

1. A communicator's id is the same on all its ranks, and so is the number of each of its collectives. A comparison of
   two rings shows which rank has entered number 17 and which has not.
2. gloo's operations end when the data have arrived. Those of NCCL and HCCL end when the host has enqueued them.
3. Transfers between two ranks are not numbered. gloo's are recorded when a thread waits for them.
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
    """Library whose function was called."""

    OTHER = 0
    GLOO = 1
    NCCL = 2
    HCCL = 3


@dataclass(frozen=True, slots=True)
class BoxEvent:
    """One operation recorded in the ring.

    Attributes:
        ticket: rises with each event of the process.
        left_ns: 0 while it is open.
        comm: id of the communicator; 0 if it is not known.
        number: number of the collective in its communicator, from 1; 0 if it is none.
        bytes: size of one rank's part; 0 if it is not known.
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
        """Operation that was called; `OTHER` for numbers of a program's own."""
        kind = self.op & ((1 << _BACKEND_SHIFT) - 1)
        return Operation(kind) if kind in _OPERATIONS and self.backend else Operation.OTHER

    @property
    def backend(self) -> Backend:
        """Library that the operation belongs to; `OTHER` for a program's own."""
        backend = self.op >> _BACKEND_SHIFT
        return Backend(backend) if backend in _BACKENDS else Backend.OTHER


_OPERATIONS = frozenset(Operation)
_BACKENDS = frozenset(Backend)


@dataclass(frozen=True, slots=True)
class BoxCommunicator:
    """One communicator of a process.

    `number` is that of its newest collective. `rank` is the process's rank in it, of `ranks`; both are -1 if not known.
    """

    id: int
    backend: Backend
    rank: int
    ranks: int
    number: int
    opened_ns: int
    closed: bool


_RING: Final = 1024
"""Number of events that a box keeps."""
_RAW: Final = struct.Struct("=QqqQQQIIIi")
"""Layout of a `struct taskd_event`, whose fields are those of `BoxEvent` in the same order."""
_LEFT: Final = 2
_COMM: Final = 3
_KIND: Final = 6
"""Word of the operation, which also holds the type of data."""
NCCL_KERNEL: Final = Backend.NCCL << _BACKEND_SHIFT | Operation.KERNEL
"""`BoxEvent.op` of the times in which NCCL's kernels run."""


def _ring(handle: Any, *places: int) -> tuple[memoryview, list[list[int]]]:
    """Return the events of an open box, newest first, and the words at these places of each.

    An Event object for each would cost 1 ms.
    """
    raw = interface().new("struct taskd_event[]", _RING)
    count = told(core().taskd_box_events(handle, raw, _RING))
    data = memoryview(interface().buffer(raw, count * _RAW.size))
    words = data.cast("B").cast("Q")
    return data, [words[place :: _RAW.size // words.itemsize].tolist() for place in places]


def _unpacked(data: memoryview, place: int) -> BoxEvent:
    return BoxEvent(*_RAW.unpack_from(data, place * _RAW.size))


def newest_events(handle: Any, each: int, most: int) -> list[BoxEvent]:
    """Return the newest operations of an open box, newest first, and all open ones.

    At most `each` of one communicator and `most` altogether are returned, apart from the open ones. Records of the
    program itself, without a communicator, are left out.
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
    """Return the newest time in which kernels of NCCL ran, from an open box; None if none is recorded."""
    data, (kinds,) = _ring(handle, _KIND)
    return _unpacked(data, kinds.index(NCCL_KERNEL)) if NCCL_KERNEL in kinds else None


def communicator_id(name: str) -> int:
    """Return the id of a communicator that was formed under this name (`Recorder.naming`)."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1


def event(raw: Any) -> BoxEvent:
    """Convert a `struct taskd_event`."""
    return BoxEvent(*(getattr(raw, name) for name in BoxEvent.__dataclass_fields__))


def read_communicators(handle: Any) -> list[BoxCommunicator]:
    """Return the communicators of an open box, the first opened one in front."""
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
