"""Pace of a rank, from its black box alone: its time for a step, and the parts spent waiting for others or for data.

Rules:

1. The steps that a rank commits between two looks are a span. It has their number, their time, and the time with at
   least one collective or transfer under way, from entering to leaving. The box holds the wait for data and the amount
   of work.
2. Only gloo's operations last until the data are there. For NCCL, the kernels on the device count instead, if its
   profiler reports them. A rank that uses NCCL without the profiler, or HCCL, gives no spans. A rank that was never in
   any operation gives none either.
3. A look reads the new events, and again those that had not ended at the last look. If some could not be read, it gives
   no span.
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
"""Number of events in the box's ring."""
_MARGIN: Final = 8
"""Events that may begin between the reading of their number and the reading of the events."""
_AWAITED: Final = 256
"""Number of later operations after which an unfinished one is no longer waited for."""
_MOST: Final = 4096
"""Most operations in one span."""
_NO_EVENTS: Final = 1 << 62
"""Ticket with no events behind it."""
_WORD: Final = 8
_EVENT_WORDS: Final = 8
_GLOO: Final = Backend.GLOO << 8
_COUNTED: Final = frozenset([*(_GLOO | op for op in range(Operation.ALLREDUCE, Operation.RECV + 1)), NCCL_KERNEL])


class Noting(Protocol):
    """Part of a black box that is read here."""

    def news(self, reading: Any, events: Any, after: int) -> int:
        """Read the newest events, as `Box.news` does."""
        ...


class _Said(NamedTuple):
    """Box's record of the newest commit, and the number of events."""

    step: int
    phase: int
    step_ns: int
    phase_ns: int
    data_ns: int
    work: int
    head: int


class _Memory:
    """Buffer for the content of a box. One serves all ranks: it holds nothing between two looks.

    A look comes every quarter of a second, with cold caches. So numbers are taken out by a few slices, not one by one.
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
        """Return the content of `reading`."""
        step, phase, *rest = (self._said[word] for word in self._words)
        return _Said(step, phase & 0xFF, *rest)

    def noted(self, count: int) -> list[tuple[int, int, int, int]]:
        """Return ticket, beginning, end and operation of each event, the oldest first."""
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

    Without a committed step they are -1 and the time at which training began.

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
    """Return the part of the time from `begin_ns` to `end_ns` that lies in at least one of the intervals, in ns."""
    covered, at_ns = 0, begin_ns
    for entered_ns, left_ns in sorted(intervals):
        if entered_ns >= end_ns:
            break
        if left_ns > at_ns:
            covered += min(left_ns, end_ns) - max(entered_ns, at_ns)
            at_ns = left_ns
    return covered


class Pacer:
    """Pace measurement of one rank; its process and box may change."""

    def __init__(self, rank: JobRank) -> None:
        self._rank = rank
        self._box: Noting | None = None
        self._profiled = False
        """True if NCCL's profiler has reported kernels."""
        self._forget()

    def look(self, box: Noting, now_ns: int) -> RankSpan | None:
        """Return the span since the last look; None without steps, or with gaps. `now_ns`: `monotonic_ns()`.

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
        """Ticket up to which all events have ended and been read, or are no longer waited for."""
        self._under_way: dict[int, tuple[int, int]] = {}
        """Operations since the newest commit: beginning and end by ticket; end 0 if not ended."""
        self._blind = True
        """True if a part of the present span was missed."""
        self._seen = False

    def _take(self, events: list[tuple[int, int, int, int]], head: int) -> None:
        whole = self._whole
        if events and events[0][0] > whole + _MARGIN:  # more events than the ring holds
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
