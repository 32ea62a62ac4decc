"""Ranks that made different calls where the calls must be the same: a comparison of collectives by their numbers.

Rules:

1. Only calls that a rank is stuck in, or that were the last of a failed rank, are compared. In a job that goes on,
   calls differ on purpose.
2. Sizes are compared where all ranks must pass the same, and where they are known; roots likewise.
3. The majority is right. Without one, the ranks that repeat their earlier calls at this place are right. Without those,
   no rank can be proven right, and all are named.
4. A rank has left a call out if it made the call that the others used to make next. So has a rank that is a step ahead.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from taskd.core.diagnosis.evidence import Collective, Evidence
from taskd.core.diagnosis.findings import Kind
from taskd.core.diagnosis.operation import Operation
from taskd.wire.kinds import JobRank

_EQUAL_SIZES: Final = frozenset(
    (
        Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCE_SCATTER, Operation.BROADCAST, Operation.REDUCE,
    )
)  # fmt: skip
_ROOTED: Final = frozenset((Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER))
_CONTEXT: Final = 3

Call: TypeAlias = tuple[Operation, int, int]
"""Values that must be the same on all ranks: operation, root, bytes."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The call `made` by a rank where the others made `usual`."""

    kind: Kind
    made: Collective
    usual: Collective


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first collective in which the ranks of a communicator differ."""

    deviations: Mapping[JobRank, Deviation]
    others: tuple[JobRank, ...]


def find_mismatches(evidence: Mapping[JobRank, Evidence], failed: Mapping[JobRank, object]) -> list[Mismatch]:
    """Return, for each communicator, the first number at which its ranks differ."""
    concerned = {
        (call.comm, call.number)
        for rank, known in evidence.items()
        for call in _last(known, ended=rank in failed)
        if call.number
    }
    calls: dict[tuple[int, int], dict[JobRank, Collective]] = defaultdict(dict)
    for rank, known in evidence.items():
        for call in known.calls.collectives:
            if (call.comm, call.number) in concerned:
                calls[call.comm, call.number][rank] = call
    found: dict[int, Mismatch] = {}
    for place in sorted(calls):
        mismatch = _compare(calls[place], evidence) if place[0] not in found else None
        if mismatch is not None:
            found[place[0]] = mismatch
    return list(found.values())


def _last(known: Evidence, *, ended: bool) -> list[Collective]:
    """Return the calls that a rank is in, or was in when it failed."""
    opened = [call for call in known.calls.collectives if call.open]
    if opened or not ended:
        return opened
    newest: dict[int, Collective] = {}
    for call in known.calls.collectives:
        newest.setdefault(call.comm, call)
    return list(newest.values())


def _compare(calls: Mapping[JobRank, Collective], evidence: Mapping[JobRank, Evidence]) -> Mismatch | None:
    sized = all(call.bytes for call in calls.values())
    steps = {call.step for call in calls.values()}
    groups: dict[object, list[JobRank]] = defaultdict(list)
    for rank, call in calls.items():
        groups[_call(call, sized=sized), call.step if None not in steps else None].append(rank)
    if len(groups) < 2:
        return None
    usual = _usual(groups, calls, evidence)
    right = calls[usual[0]] if usual else None
    deviations = {}
    for ranks in groups.values():
        if ranks is usual:
            continue
        other = right or calls[next(rank for group in groups.values() if group is not ranks for rank in group)]
        history = _history(evidence[ranks[0]], calls[ranks[0]], sized=sized)
        kind = _kind(calls[ranks[0]], other, history, sized=sized)
        deviations.update({rank: Deviation(kind, calls[rank], other) for rank in ranks})
    return Mismatch(deviations, tuple(rank for rank in calls if rank not in deviations))


def _call(call: Collective, *, sized: bool) -> Call:
    return (
        call.op,
        call.peer if call.op in _ROOTED else -1,
        call.bytes if sized and call.op in _EQUAL_SIZES else 0,
    )


def _usual(
    groups: Mapping[object, list[JobRank]], calls: Mapping[JobRank, Collective], evidence: Mapping[JobRank, Evidence]
) -> list[JobRank] | None:
    """Return the ranks that are right; None if that cannot be decided."""
    most = max(map(len, groups.values()))
    largest = [ranks for ranks in groups.values() if len(ranks) == most]
    if len(largest) == 1:
        return largest[0]
    expected = [ranks for ranks in largest if _as_before(evidence[ranks[0]], calls[ranks[0]])]
    return expected[0] if len(expected) == 1 else None


def _history(known: Evidence, until: Collective, *, sized: bool) -> list[Call]:
    """Return the calls of this communicator before that one, the oldest first."""
    before = {call.number: call for call in known.calls.collectives if call.comm == until.comm and call.number}
    history, number = [], until.number - 1
    while number in before:
        history.append(_call(before[number], sized=sized))
        number -= 1
    return history[::-1]


def _as_before(known: Evidence, call: Collective) -> bool:
    """Return whether the rank makes the call that came after the same calls the last time."""
    sized = call.bytes > 0
    history = _history(known, call, sized=sized)
    place = _place(history, history[-_CONTEXT:])
    return place is not None and history[place] == _call(call, sized=sized)


def _place(history: list[Call], context: list[Call]) -> int | None:
    """Return the place in the history that followed these calls the last time.

    The longest tail of `context` that occurs in the history counts; None if none does.
    """
    for length in range(len(context), 0, -1):
        tail = context[-length:]
        for place in range(len(history) - 1, length - 1, -1):
            if history[place - length : place] == tail:
                return place
    return None


def _kind(made: Collective, usual: Collective, history: list[Call], *, sized: bool) -> Kind:
    if None not in (made.step, usual.step) and (made.step or 0) > (usual.step or 0):
        return Kind.SKIPPED
    mine, theirs = _call(made, sized=sized), _call(usual, sized=sized)
    place = _place(history, [*history[-_CONTEXT + 1 :], theirs])
    if place is not None and history[place] == mine != theirs:
        return Kind.SKIPPED
    return (
        Kind.SIZE_MISMATCH if made.op is usual.op and made.peer == usual.peer and mine != theirs else Kind.OP_MISMATCH
    )


def majority(operations: Counter[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the operation, by communicator and number, that most ranks are in; None if two have as many."""
    (first, most), *rest = operations.most_common(2)
    return first if not rest or rest[0][1] < most else None
