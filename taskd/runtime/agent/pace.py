"""How long a rank needs for a step, and how much of it is waiting for others or for data: from its black box alone.

Rules:

1. Between two looks a rank has committed some steps. That is a span: its steps, its time, and the time in which at
   least one collective or transfer was under way, from entering to leaving; what it waited for data and was given to
   do stands in the box.
2. Only gloo's operations last until the data are there. Of NCCL's, its kernels on the device are taken instead, where
   its profiler tells of them. Of a rank that uses NCCL without it, or HCCL, there are no spans, nor of one that has not
   been seen in any operation.
3. A look reads what is new, and again what had not ended at the last one. What could not be read whole gives no span.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from taskd.core.diagnosis.operation import Operation
from taskd.runtime.box.blackbox import Backend, BoxPhase
from taskd.runtime.box.operations import NCCL_KERNEL
from taskd.runtime.box.shim import interface
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankSpan

ROOM: Final = 1024
"""As many as the ring has."""
_MARGIN: Final = 8
"""Events that may begin between the reading of their number and the reading of themselves."""
_AWAITED: Final = 256
"""An operation that has not ended after so many later ones is not waited for."""
_MOST: Final = 4096
"""Operations in one span."""
_NO_EVENTS: Final = 1 << 62
"""A ticket behind which there are none."""
_WORD: Final = 8
_EVENT_WORDS: Final = 8
_GLOO: Final = Backend.GLOO << 8
_COUNTED: Final = frozenset([*(_GLOO | op for op in range(Operation.ALLREDUCE, Operation.RECV + 1)), NCCL_KERNEL])


class Noting(Protocol):
    """A black box, as far as it is read here."""

    def news(self, reading: Any, events: Any, after: int) -> int:
        """See `Box.news`."""
        ...


class _Said(NamedTuple):
    """What the box says of the newest commit, and the number of events."""

    step: int
    phase: int
    step_ns: int
    phase_ns: int
    data_ns: int
    work: int
    head: int


class _Memory:
    """Room for what is read of a box. One for all ranks: it holds nothing between two looks.

    A look comes every quarter of a second, into empty caches: numbers are taken out by a few slices, not one by one.
    """

    def __init__(self) -> None:
        ffi = interface()
        self.reading = ffi.new("struct taskd_reading *")
        self.events = ffi.new("struct taskd_event[]", ROOM)
        self._said = memoryview(ffi.buffer(self.reading)).cast("b").cast("q")
        self._noted = memoryview(ffi.buffer(self.events)).cast("b").cast("q")
        self._words = [
            ffi.offsetof("struct taskd_reading", name) // _WORD
            for name in ("step", "phase", "step_ns", "phase_ns", "data_ns", "work", "events")
        ]
        self._fields = [
            ffi.offsetof("struct taskd_event", name) // _WORD for name in ("ticket", "entered_ns", "left_ns", "op")
        ]

    def said(self) -> _Said:
        """What `reading` holds."""
        step, phase, *rest = (self._said[word] for word in self._words)
        return _Said(step, phase & 0xFF, *rest)

    def noted(self, count: int) -> list[tuple[int, int, int, int]]:
        """Ticket, beginning, end and operation of each, oldest first."""
        words = self._noted[: count * _EVENT_WORDS]
        ticket, entered, left, op = (words[field::_EVENT_WORDS].tolist() for field in self._fields)
        found = [*zip(ticket, entered, left, op, strict=True)]
        found.reverse()
        return found


@cache
def _memory() -> _Memory:
    return _Memory()


def newest_commit(box: Noting) -> tuple[int, int] | None:
    """Return the newest step of a rank and the time of its commit, in ns; None if the rank does not train.

    Without a committed step it is -1, since the rank trains.

    Raises:
        ShimError: the box was closed, or cut.
    """
    memory = _memory()
    box.news(memory.reading, memory.events, _NO_EVENTS)
    said = memory.said()
    if said.phase != BoxPhase.TRAINING:
        return None
    return (said.step, said.step_ns) if said.step_ns else (-1, said.phase_ns)


def covered_ns(intervals: Iterable[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """How much of the time from `begin_ns` to `end_ns` lies in at least one of the intervals."""
    covered, at_ns = 0, begin_ns
    for entered_ns, left_ns in sorted(intervals):
        if entered_ns >= end_ns:
            break
        if left_ns > at_ns:
            covered += min(left_ns, end_ns) - max(entered_ns, at_ns)
            at_ns = left_ns
    return covered


class Pacer:
    """Follows one rank; its process and box may change."""

    def __init__(self, rank: JobRank) -> None:
        self._rank = rank
        self._box: Noting | None = None
        self._profiled = False
        """NCCL has told when its kernels run."""
        self._forget()

    def look(self, box: Noting, now_ns: int) -> RankSpan | None:
        """The steps since the last look; None if there are none, or not all is known. `now_ns`: `monotonic_ns()`.

        Raises:
            ShimError: the box was closed, or cut.
        """
        if box is not self._box:
            self._box, self._profiled = box, False
            self._forget()
        memory = _memory()
        count = box.news(memory.reading, memory.events, self._whole - _MARGIN)
        said = memory.said()
        if said.phase != BoxPhase.TRAINING or said.step < self._last.step:
            self._forget(said.head)
            return None
        self._take(memory.noted(count), said.head)
        return self._advance(said, now_ns) if said.step > self._last.step else None

    def _forget(self, head: int = 0) -> None:
        self._last = _Said(-1, 0, 0, 0, 0, 0, 0)
        self._whole = head
        """All up to this ticket have ended and been read, or are not waited for."""
        self._under_way: dict[int, tuple[int, int]] = {}
        """Operations since the newest commit, from and to; to 0 if it has not ended."""
        self._blind = True
        """Not all that belongs to the span under way was seen."""
        self._seen = False

    def _take(self, events: list[tuple[int, int, int, int]], head: int) -> None:
        whole = self._whole
        if events and events[0][0] > whole + _MARGIN:  # more than the ring holds
            self._blind, whole = True, events[0][0] - 1
        for ticket, entered_ns, left_ns, op in events:
            if ticket <= whole:
                continue
            kind = op & 0xFFFF  # the type of data stands in the same word
            if kind in _COUNTED:
                self._under_way[ticket] = (entered_ns, left_ns)
                self._profiled = self._profiled or kind == NCCL_KERNEL
            elif kind >> 8 == Backend.HCCL or (kind >> 8 == Backend.NCCL and not self._profiled):
                self._blind = True
            if ticket == whole + 1 and left_ns:
                whole = ticket
        self._whole = max(whole, head - _AWAITED)
        self._seen = self._seen or bool(self._under_way)
        if len(self._under_way) > _MOST:
            self._blind = True
            self._under_way.clear()

    def _advance(self, said: _Said, now_ns: int) -> RankSpan | None:
        before, blind = self._last, self._blind or not self._seen
        intervals = [(entered_ns, left_ns or now_ns) for entered_ns, left_ns in self._under_way.values()]
        waited_ns = covered_ns(intervals, before.step_ns, said.step_ns)
        self._under_way = {
            ticket: (entered_ns, left_ns)
            for ticket, (entered_ns, left_ns) in self._under_way.items()
            if left_ns > said.step_ns or (not left_ns and ticket > self._whole)
        }
        self._last, self._blind = said, False
        steps, lasted_ns = said.step - before.step, said.step_ns - before.step_ns
        if blind or lasted_ns <= 0:
            return None
        data_ns = min(said.data_ns - before.data_ns, lasted_ns - waited_ns)
        return RankSpan(
            rank=self._rank,
            step=said.step,
            steps=steps,
            own_s=(lasted_ns - waited_ns - data_ns) / 1e9 / steps,
            waited_s=waited_ns / 1e9 / steps,
            data_s=data_ns / 1e9 / steps,
            work=(said.work - before.work) / steps,
        )
