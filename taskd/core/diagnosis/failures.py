"""Rules for failed ranks: which have failed by themselves, and which only because another one had.

Rules:

1. A failure is weak if another failure may have caused it: an abort, an error status without an exception, a SIGTERM (a
   launcher sends it to the others), Python's ConnectionError. An error that torch blames on a peer always follows one.
2. Of weak failures, the first one counts. A strong one counts whenever it came.
3. Ranks that made different calls come before weak failures: gloo ends a process whose peer sends another size.
4. A rank that ends with status 0 has failed only if others still need it.
"""

from collections.abc import Collection
from typing import Final

from taskd.core.diagnosis.account import finding, operation
from taskd.core.diagnosis.conditions import blames_sizes, left_by_itself, may_blame_peer
from taskd.core.diagnosis.endings import may_be_told_to_end
from taskd.core.diagnosis.findings import Kind, names
from taskd.core.diagnosis.jobview import Found, JobView, blame
from taskd.core.diagnosis.mismatch import find_mismatches
from taskd.wire.kinds import JobRank

_AT_ONCE_S: Final = 0.05
"""Ends that are closer together, in seconds, count as simultaneous: ages are not more exact."""
_NO_FAILURES: Final = (Kind.COLLATERAL, Kind.EXITED_EARLY)
_MAY_FOLLOW: Final = (Kind.ABORTED, Kind.EXITED)


def _failed(view: JobView) -> list[JobRank]:
    return [rank for rank, row in view.ends.items() if row.kind not in _NO_FAILURES]


def _weak(view: JobView, rank: JobRank) -> bool:
    kind, known = view.ends[rank].kind, view.evidence[rank]
    told_to_end = kind is Kind.KILLED and known.end.ending is not None and may_be_told_to_end(known.end.ending)
    return kind in _MAY_FOLLOW or told_to_end or (kind is Kind.EXCEPTION and may_blame_peer(known))


def by_themselves(view: JobView) -> Found | None:
    """Blame failures that no other rank can have caused, and the earliest failures even if they are weak.

    Return None if there are only weak failures.
    """
    failed = _failed(view)
    strong = {rank for rank in failed if not _weak(view, rank)}
    first = [rank for rank in _first(view, failed) if _age(view, rank) is not None]
    return blame(view, strong.union(first), view.ends) if strong else None


def perhaps_by_others(view: JobView) -> Found | None:
    """Blame the first of the weak failures."""
    return blame(view, _first(view, _failed(view)), view.ends)


def _age(view: JobView, rank: JobRank) -> float | None:
    ending = view.evidence[rank].end.ending
    return ending.age_s if ending is not None else None


def _first(view: JobView, failed: Collection[JobRank]) -> list[JobRank]:
    """Return the ranks that cannot be shown to have failed after another one."""
    ages = {rank: _age(view, rank) for rank in failed}
    first_s = max((age for age in ages.values() if age is not None), default=0.0)
    return [rank for rank, age in ages.items() if age is None or age >= first_s - _AT_ONCE_S]


def too_early(view: JobView) -> Found | None:
    """Blame ranks that ended with status 0 although others wait for them or have failed after them."""
    left = [rank for rank in view.ended(Kind.EXITED_EARLY) if not _finished(view, rank)]
    if len(left) == len(view.members):
        return None
    followers = [age for age in (_age(view, rank) for rank in view.ended(*_MAY_FOLLOW)) if age is not None]
    newest_s = min(followers, default=None)
    missed = [
        rank
        for rank in left
        if view.disturbed
        or left_by_itself(view.evidence[rank]) is not None
        or rank in view.waits.late
        or (newest_s is not None and (_age(view, rank) or 0.0) > newest_s + _AT_ONCE_S and _silent_ends(view))
    ]
    return blame(view, missed, view.ends)


def _silent_ends(view: JobView) -> bool:
    """Return whether every failure may be an uncaught exception that was not recorded: an abort, or status 1."""
    endings = (view.evidence[rank].end.ending for rank in _failed(view))
    return all(ending is not None and ending.status in (None, 1) for ending in endings)


def _finished(view: JobView, rank: JobRank) -> bool:
    ending = view.evidence[rank].end.ending
    return ending is not None and ending.finished


def mismatched(view: JobView) -> Found | None:
    """Blame ranks that made another call than the others."""
    if not view.disturbed and not _failed(view):
        return None
    facts = []
    for mismatch in find_mismatches(view.evidence, view.ends):
        for rank, deviation in mismatch.deviations.items():
            others = f" ({names(mismatch.others)})" if mismatch.others else ""
            more = f": {operation(deviation.made)}, where the others{others} have {operation(deviation.usual)}"
            facts.append(finding(rank, deviation.kind, view.evidence[rank], more=more))
    if not facts and any(blames_sizes(known) for known in view.evidence.values()):
        return Found([], Kind.SIZE_MISMATCH, ("gloo has received more than a rank had asked for",))
    return Found(facts) if facts else None
