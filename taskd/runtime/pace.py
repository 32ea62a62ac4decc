"""How long a rank needs for a step, and how much of it is waiting for others: from its black box alone.

Rules:

1. Between two looks a rank has committed some steps. That is a span: its steps, its time, and the time in which at
   least one collective or transfer was under way, from entering to leaving.
2. A pace is made of the newest spans that have 10 steps, 6 s and 5 spans together: the median step, and of what the
   rank needs itself the lower quartile. Whatever keeps a rank off its core, a checkpoint or one slow step only adds, so
   that its better spans tell how fast it is; a slow one is slow in those too. All spans weigh as many as their steps.
3. Only gloo's operations last until the data are there. A rank that uses another backend has no pace.
4. A look reads what is new, and again what had not ended at the last one. What could not be read whole gives no span.
"""

from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from taskd.core.operation import Operation
from taskd.runtime.blackbox import Backend, Phase
from taskd.runtime.shim import interface
from taskd.wire.messages import RankPace

STEPS: Final = 10
LASTING_NS: Final = 6_000_000_000
SPANS: Final = 5
ROOM: Final = 1024
"""As many as the ring has."""
_MARGIN: Final = 8
"""Events that may begin between the reading of their number and the reading of themselves."""
_PATIENCE: Final = 256
"""An operation that has not ended after so many later ones is not waited for."""
_MOST: Final = 4096
"""Operations in one span."""
_WORD: Final = 8
_EVENT_WORDS: Final = 8
_GLOO: Final = Backend.GLOO << 8
_COUNTED: Final = frozenset(_GLOO | op for op in range(Operation.ALLREDUCE, Operation.RECV + 1))
_ENQUEUED: Final = (Backend.NCCL, Backend.HCCL)


class Noting(Protocol):
    """A black box, as far as it is read here."""

    def news(self, reading: Any, events: Any, after: int) -> int:
        """See `Box.news`."""
        ...


class Span(NamedTuple):
    """Some steps of a rank, one after the other."""

    steps: int
    lasted_ns: int
    waited_ns: int


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
        self._step, self._phase, self._step_ns, self._head = (
            ffi.offsetof("struct taskd_reading", name) // _WORD for name in ("step", "phase", "step_ns", "events")
        )
        self._fields = [
            ffi.offsetof("struct taskd_event", name) // _WORD for name in ("ticket", "entered_ns", "left_ns", "op")
        ]

    def said(self) -> tuple[int, int, int, int]:
        """Step, phase, time of the step, number of events."""
        said = self._said
        return said[self._step], said[self._phase] & 0xFF, said[self._step_ns], said[self._head]

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


def usual(spans: Iterable[Span]) -> tuple[float, float]:
    """Seconds that a step takes, and seconds of it that are spent waiting."""
    known = list(spans)
    step_s = _quantile(0.5, ((span.lasted_ns / span.steps, span.steps) for span in known)) / 1e9
    own = ((span.lasted_ns - span.waited_ns) / span.steps for span in known)
    own_s = _quantile(0.25, zip(own, (span.steps for span in known), strict=True)) / 1e9
    return step_s, max(0.0, step_s - own_s)


def _quantile(share: float, weighed: Iterable[tuple[float, int]]) -> float:
    values = sorted(weighed)
    wanted, passed = share * sum(weight for _, weight in values), 0
    for value, weight in values:
        passed += weight
        if passed >= wanted:
            return value
    raise ValueError("a quantile of nothing was asked for")


class Pacer:
    """Follows one rank; its process and box may change."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._box: Noting | None = None
        self._forget()

    def look(self, box: Noting, now_ns: int) -> RankPace | None:
        """The rank's pace; None until it is known, or if its collectives are not seen. `now_ns`: `monotonic_ns()`.

        Raises:
            BoxClosedError: the box was closed.
        """
        if box is not self._box:
            self._box = box
            self._forget()
        memory = _memory()
        count = box.news(memory.reading, memory.events, self._whole - _MARGIN)
        step, phase, step_ns, head = memory.said()
        if phase != Phase.TRAINING or step < self._step:
            self._forget(head)
            return None
        self._take(memory.noted(count), head)
        if step > self._step:
            self._advance(step, step_ns, now_ns)
        return self._pace()

    def _forget(self, head: int = 0) -> None:
        self._step, self._step_ns = -1, 0
        self._whole = head
        """All up to this ticket have ended and been read, or are not waited for."""
        self._under_way: dict[int, tuple[int, int]] = {}
        """Operations since the newest commit, from and to; to 0 if it has not ended."""
        self._blind = True
        """Not all that belongs to the span under way was seen."""
        self._spans: deque[Span] = deque()
        self._steps = self._lasted_ns = 0
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
            elif kind >> 8 in _ENQUEUED:
                self._blind = True
            if ticket == whole + 1 and left_ns:
                whole = ticket
        self._whole = max(whole, head - _PATIENCE)
        self._seen = self._seen or bool(self._under_way)
        if len(self._under_way) > _MOST:
            self._blind = True
            self._under_way.clear()

    def _advance(self, step: int, step_ns: int, now_ns: int) -> None:
        since_ns, steps = self._step_ns, step - self._step
        intervals = [(entered_ns, left_ns or now_ns) for entered_ns, left_ns in self._under_way.values()]
        waited_ns = covered_ns(intervals, since_ns, step_ns)
        self._under_way = {
            ticket: (entered_ns, left_ns)
            for ticket, (entered_ns, left_ns) in self._under_way.items()
            if left_ns > step_ns or (not left_ns and ticket > self._whole)
        }
        if not self._blind and step_ns > since_ns:
            self._add(Span(steps, step_ns - since_ns, waited_ns))
        self._step, self._step_ns, self._blind = step, step_ns, False

    def _add(self, span: Span) -> None:
        self._spans.append(span)
        self._steps += span.steps
        self._lasted_ns += span.lasted_ns
        while self._enough(self._spans[0]):
            first = self._spans.popleft()
            self._steps -= first.steps
            self._lasted_ns -= first.lasted_ns

    def _enough(self, less: Span | None = None) -> bool:
        """Whether the spans, without this one, are what a pace needs."""
        steps, lasted_ns, spans = (less.steps, less.lasted_ns, 1) if less else (0, 0, 0)
        return (
            self._steps - steps >= STEPS
            and self._lasted_ns - lasted_ns >= LASTING_NS
            and len(self._spans) - spans >= SPANS
        )

    def _pace(self) -> RankPace | None:
        if not self._seen or not self._enough():
            return None
        step_s, waited_s = usual(self._spans)
        return RankPace(rank=self._rank, steps=self._steps, step_s=step_s, waited_s=waited_s)
