"""Waits between ranks: from the collectives that each rank has entered to the ranks that hold the others up.

Rules:

1. A rank waits in an operation that is open. In a collective, it is held up by ranks of the communicator that have
   entered fewer of its collectives. In a transfer, it is held up by its partner.
2. NCCL's and HCCL's operations end for the host when they are enqueued. There, a main thread that does not answer waits
   in its newest operation, if others have not entered it.
3. A rank that holds others up and waits for no one is a root. Chains over several communicators end there.
4. An operation that all have entered and that does not end is stuck: its data do not arrive.
5. The cost is linear in the number of ranks and of their communicators: edges go through the communicator, and never
   between each two ranks.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from taskd.core.diagnosis.evidence import Collective, Evidence
from taskd.core.diagnosis.operation import Operation
from taskd.wire.kinds import JobRank

UNANSWERED_S: Final = 1.0
"""Time without an answer that counts as silence, in seconds. A healthy process answers five times a second."""
_TRANSFERS: Final = {Operation.SEND: Operation.RECV, Operation.RECV: Operation.SEND}


@dataclass(slots=True)
class Waits:
    """The waits of a job at one moment.

    Attributes:
        waiting: operation in which a rank waits for a rank that has not entered it.
        unsure: the same, where no such rank is known but not all that take part are.
        stuck: operation that all have entered.
        late: operation that the rank has not entered and others wait in.
        holder: for each rank that waits, one of those that hold it up.

    """

    waiting: dict[JobRank, Collective] = field(default_factory=dict)
    unsure: dict[JobRank, Collective] = field(default_factory=dict)
    stuck: dict[JobRank, Collective] = field(default_factory=dict)
    late: dict[JobRank, Collective] = field(default_factory=dict)
    holder: dict[JobRank, JobRank] = field(default_factory=dict)

    @property
    def held_up(self) -> set[JobRank]:
        """All ranks that wait."""
        return {*self.waiting, *self.unsure, *self.stuck}

    def roots(self) -> dict[JobRank, Collective]:
        """Return the ranks that hold others up and wait for no one, with the operation that each has not entered."""
        held_up = self.held_up
        return {rank: operation for rank, operation in self.late.items() if rank not in held_up}


class _Roster:
    """The ranks of each communicator, and how far each of them is."""

    def __init__(self, evidence: Mapping[JobRank, Evidence], members: Collection[JobRank]) -> None:
        self.entered: dict[int, dict[JobRank, int]] = defaultdict(dict)
        self.seats: dict[tuple[int, int], JobRank] = {}
        self._sizes: dict[int, int] = {}
        self._all_heard = len(evidence) == len(members)
        for rank, known in evidence.items():
            for one in known.calls.communicators:
                self.entered[one.comm][rank] = one.number
                self._sizes[one.comm] = one.ranks
                self.seats[one.comm, one.rank] = rank
            for call in known.calls.collectives:
                if call.number:
                    numbers = self.entered[call.comm]
                    numbers[rank] = max(call.number, numbers.get(rank, 0))
        self._complete(evidence, members)
        self.last = {comm: min(numbers, key=numbers.__getitem__) for comm, numbers in self.entered.items()}

    def _complete(self, evidence: Mapping[JobRank, Evidence], members: Collection[JobRank]) -> None:
        """Add ranks that belong to a communicator of the whole job but have not opened it yet, or left no record."""
        for comm, numbers in self.entered.items():
            if self._sizes.get(comm) == len(members) > len(numbers):
                numbers.update({rank: 0 for rank in evidence if rank not in numbers})

    def whole(self, comm: int) -> bool:
        """Return whether every rank of the communicator is known."""
        size = self._sizes.get(comm, -1)
        return len(self.entered[comm]) >= size if size > 0 else self._all_heard

    def holder(self, call: Collective) -> JobRank | None:
        """Return one of the ranks furthest behind in the call's communicator, if it has not entered the call."""
        last = self.last[call.comm]
        return last if self.entered[call.comm][last] < call.number else None


def find_waits(evidence: Mapping[JobRank, Evidence], members: Collection[JobRank], still: Collection[JobRank]) -> Waits:
    """Find which rank waits for which.

    The ranks in `still` are dead or stand still as a whole: they wait for no one.
    """
    roster, waits = _Roster(evidence, members), Waits()
    fronts: dict[int, list[Collective]] = defaultdict(list)
    for rank, known in evidence.items():
        if rank not in still:
            for call in _pending(known, roster):
                _sort_in(waits, roster, evidence, rank, call)
                if call.number:
                    fronts[call.comm].append(call)
    for comm, calls in fronts.items():
        _note_late(waits, roster.entered[comm], calls)
    for rank in waits.waiting:
        waits.unsure.pop(rank, None)
        waits.stuck.pop(rank, None)
    for rank in waits.unsure:
        waits.stuck.pop(rank, None)
    return waits


def _pending(known: Evidence, roster: _Roster) -> Iterator[Collective]:
    """Yield the operations that a rank waits in."""
    calls = [call for call in known.calls.collectives if call.op not in (Operation.OPEN, Operation.CLOSE)]
    opened = [call for call in calls if call.open]
    if opened:
        yield from reversed(opened)
    elif known.clocks is not None and (known.clocks.main_s or 0.0) >= UNANSWERED_S:
        newest = (call for call in calls[:1] if call.enqueued and call.number)
        yield from (call for call in newest if roster.holder(call) is not None or not roster.whole(call.comm))


def _sort_in(
    waits: Waits, roster: _Roster, evidence: Mapping[JobRank, Evidence], rank: JobRank, call: Collective
) -> None:
    if call.number:
        holder, known = roster.holder(call), roster.whole(call.comm)
    else:
        holder = roster.seats.get((call.comm, call.peer))
        known = holder is not None
        if holder is not None and _meets(evidence[holder], call, roster, rank):
            holder = None
        if holder is not None:
            waits.late.setdefault(holder, call)
    if holder is not None:
        waits.holder.setdefault(rank, holder)
    place = waits.waiting if holder is not None else waits.stuck if known else waits.unsure
    place.setdefault(rank, call)


def _meets(partner: Evidence, call: Collective, roster: _Roster, rank: JobRank) -> bool:
    """Return whether the partner is at the other end of this transfer."""
    other = _TRANSFERS.get(call.op)
    return any(
        theirs.open
        and theirs.op is other
        and theirs.comm == call.comm
        and roster.seats.get((theirs.comm, theirs.peer)) == rank
        for theirs in partner.calls.collectives
    )


def _note_late(waits: Waits, entered: Mapping[JobRank, int], calls: list[Collective]) -> None:
    """Record each rank that has not entered the newest of the calls, with the first of them that it has not entered."""
    first = {call.number: call for call in reversed(calls)}
    numbers = sorted(first)
    for rank, number in entered.items():
        if number < numbers[-1]:
            waits.late.setdefault(rank, first[numbers[bisect_right(numbers, number)]])


def find_circles(waits: Waits) -> list[list[JobRank]]:
    """Find ranks that wait for each other in a circle, in different operations."""
    circles: list[list[JobRank]] = []
    visit: dict[JobRank, int] = {}
    for number, start in enumerate(waits.waiting):
        path: list[JobRank] = []
        rank: JobRank | None = start
        while rank is not None and rank not in visit:
            visit[rank] = number
            path.append(rank)
            rank = waits.holder.get(rank)
        if rank is not None and visit[rank] == number:
            circles.append(path[path.index(rank) :])
    return circles
