"""Rules for a job in which no rank has failed and nothing goes on: they find the rank that holds the others up.

Rules:

1. Most of them need a hang that the job's rhythm has declared. Without it, an error that blames a connection is enough
   to find two things: silent nodes, and cut connections that nodes report.
2. The culprit is the rank that others wait for and that waits for no one. Its activity gives the kind.
3. If the black boxes have not recorded the collectives, the few ranks that do something else than the many are named.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from taskd.core.diagnosis.account import finding, operation
from taskd.core.diagnosis.conditions import Symptom, condition_of_hang, waits_by_stack
from taskd.core.diagnosis.evidence import Collective, Evidence, Standing
from taskd.core.diagnosis.findings import Kind, names
from taskd.core.diagnosis.jobview import Found, JobView, blame
from taskd.core.diagnosis.mismatch import majority
from taskd.core.diagnosis.proof import doubt
from taskd.core.diagnosis.waits import UNANSWERED_S, find_circles
from taskd.wire.kinds import JobRank, NodeRank

_WHATEVER_IT_WAITS_FOR: Final = (Kind.UNINTERRUPTIBLE, Kind.GIL_HELD)
_OF_ANY: Final = (Kind.UNINTERRUPTIBLE, Kind.GIL_HELD, Kind.DISK_FULL, Kind.LOCK_FILE, Kind.DATA_BLOCKED)
_OF_FEW: Final = (Kind.LOOP, Kind.DEADLOCK, Kind.BLOCKED)
_LEFT_OUT: Final = Symptom(Kind.SKIPPED, lambda _: True, "it has gone on without entering what the others wait in")
_ON_DEVICE: Final = Symptom(
    Kind.DEVICE_BEHIND, lambda _: True, "the devices of others wait in NCCL, and what it gave to its own has not ended"
)
"""Takes the place of BLOCKED where NCCL reports when its kernels run."""


def holding_up(view: JobView) -> Found | None:
    """Blame processes that stand still, and ranks that have not entered the operation that others wait in."""
    if view.hang is None:
        return None
    rows = dict(view.standing_still)
    held_up = view.waits.held_up
    steps = (view.evidence[rank].position.step for rank in held_up)
    furthest = max((step for step in steps if step is not None), default=None)
    for rank, call in view.waits.roots().items():
        known = view.evidence[rank]
        if rank not in {*rows, *view.ends, *view.behind_builders} and not known.gone:
            rows[rank] = _LEFT_OUT if _is_ahead(known, call, furthest) else condition_of_hang(known)
    for rank in view.waits.stuck:
        row = condition_of_hang(view.evidence[rank])
        if row.kind in _WHATEVER_IT_WAITS_FOR:
            rows[rank] = row
    return blame(view, rows, rows)


def _is_ahead(known: Evidence, call: Collective, furthest: int | None) -> bool:
    if known.position.standing is Standing.FINISHED:
        return True
    step = known.position.step
    if step is None:
        return False
    return (call.step is not None and step >= call.step) or (furthest is not None and step > furthest)


def waits_on_device(known: Evidence) -> bool:
    """Return whether a kernel of NCCL has been running on the device for long: it waits for other ranks' kernels."""
    return known.calls.kernel_s is not None and known.calls.kernel_s >= UNANSWERED_S


def late_on_device(view: JobView) -> Found | None:
    """Blame ranks whose device runs no kernel of NCCL, while on other devices such kernels wait for theirs.

    The hosts have enqueued the same operations. A stack inside a collective excuses no rank here: its host has come
    that far, but its device has not.
    """
    if view.hang is None or not any(map(waits_on_device, view.evidence.values())):
        return None
    idle = {
        rank: condition_of_hang(known)
        for rank, known in view.evidence.items()
        if known.calls.kernel_s == 0.0 and not known.gone and rank not in view.ends and rank not in view.held_up
    }
    rows = {rank: _ON_DEVICE if row.kind is Kind.BLOCKED else row for rank, row in idle.items()}
    return blame(view, [rank for rank, row in rows.items() if row.kind is not Kind.BEHIND], rows)


def outside(view: JobView) -> Found | None:
    """Blame ranks that are in no collective while the others wait or are silent, if their collectives are recorded."""
    if view.hang is None or not (view.waits.held_up or view.silent):
        return None
    live = {rank: known for rank, known in _live(view).items() if known.calls.communicators}
    rows = {rank: condition_of_hang(known) for rank, known in live.items()}
    return blame(view, [rank for rank, row in rows.items() if row.kind is not Kind.BEHIND], rows)


def _live(view: JobView) -> dict[JobRank, Evidence]:
    """Return the ranks that live and are not seen to wait for anyone."""
    held_up = view.held_up
    return {
        rank: known
        for rank, known in view.evidence.items()
        if not known.gone and rank not in view.ends and rank not in held_up and not waits_by_stack(known)
    }


def not_heard(view: JobView) -> Found | None:
    """Blame the ranks without evidence: nothing is known of their node."""
    if not view.disturbed or not view.silent:
        return None
    nothing = Evidence()
    return Found([finding(rank, Kind.SILENT, nothing, view.waits.late.get(rank)) for rank in view.silent])


def cut_off(view: JobView) -> Found | None:
    """Blame the node that cannot reach others, as nodes report, while the processes are well.

    If the reports name all nodes equally often, no rank is blamed.
    """
    if not view.disturbed or not view.cuts:
        return None
    lost = Counter(node for cut in set(view.cuts) for node in (cut.source, cut.target))
    most = max(lost.values())
    nodes = {node for node, count in lost.items() if count == most}
    reason = f"{_nodes(lost)} cannot reach each other"
    if len(nodes) == len(lost):
        return Found([], Kind.CONNECTION_CUT, (f"{reason}, and nothing says which of them is at fault",))
    ranks = [rank for rank, known in view.evidence.items() if known.node in nodes]
    facts = [finding(rank, Kind.CONNECTION_CUT, view.evidence[rank]) for rank in ranks]
    return Found(facts, Kind.CONNECTION_CUT, (f"{reason}, and most often it is {_nodes(nodes)}",)) if facts else None


def _nodes(nodes: Collection[NodeRank]) -> str:
    return names(nodes).replace("rank", "node", 1)


def not_arriving(view: JobView) -> Found | None:
    """Find a cut connection: all have entered, or connections were blamed, and no rank has failed by itself."""
    blamed = view.waits.stuck or view.ended(Kind.COLLATERAL)
    return Found([], Kind.CONNECTION_CUT) if view.hang is not None and blamed else None


def in_circle(view: JobView) -> Found | None:
    """Blame the few ranks that are in operations of several communicators in another order than the many."""
    if view.hang is None:
        return None
    waiting = view.waits.waiting
    blamed: dict[JobRank, Collective] = {}
    circles = find_circles(view.waits)
    for circle in circles:
        places = {(waiting[rank].comm, waiting[rank].number) for rank in circle}
        inside = {rank: call for rank, call in waiting.items() if (call.comm, call.number) in places}
        usual = majority(Counter((call.comm, call.number) for call in inside.values()))
        blamed |= {rank: call for rank, call in inside.items() if (call.comm, call.number) != usual}
    late = view.waits.late
    facts = [
        finding(rank, Kind.OP_MISMATCH, view.evidence[rank], late.get(rank), f": it waits in {operation(call)}")
        for rank, call in blamed.items()
    ]
    return Found(facts, doubt=doubt(view.evidence[rank] for circle in circles for rank in circle)) if facts else None


def presumed(view: JobView) -> Found | None:
    """Blame ranks that do something without progress, when no rank is seen to wait."""
    if view.hang is None:
        return None
    live = _live(view)
    rows = {rank: condition_of_hang(known) for rank, known in live.items()}
    for kind in (*_OF_ANY, *_OF_FEW):
        holding = [rank for rank, row in rows.items() if row.kind is kind]
        if holding and (kind in _OF_ANY or 2 * len(holding) <= len(view.members)):
            return blame(view, holding, rows)
    return _behind(live)


def _behind(live: Mapping[JobRank, Evidence]) -> Found | None:
    """Blame the ranks of the lowest step, if others are further."""
    steps = {rank: known.position.step for rank, known in live.items() if known.position.step is not None}
    lowest = min(steps.values(), default=0)
    behind = [rank for rank, step in steps.items() if step == lowest]
    return Found([finding(rank, Kind.BEHIND, live[rank]) for rank in behind]) if len(behind) < len(steps) else None


def unknown(view: JobView) -> Found | None:
    """Find a stall without a culprit: nothing goes on, and no rank can be named."""
    return Found([], Kind.STALLED) if view.hang is not None else None
