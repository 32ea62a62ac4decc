"""Rules for ranks that have failed: who did so by himself, and who only because somebody else had.

Rules:

1. A failure is weak if it may be the consequence of another one: an abort, an error status without an exception, a
   SIGTERM (a launcher sends it to the others), Python's ConnectionError. What torch blames on a peer is always one.
2. Of weak failures the first one counts. A strong one counts whenever it came.
3. Ranks that made different calls come before weak failures: gloo ends a process whose peer sends another size.
4. Whoever ends with status 0 has failed only if others still need it.
"""

from collections.abc import Collection
from typing import Final

from taskd.core.account import finding, operation
from taskd.core.conditions import blames_sizes, left_by_itself, may_blame_peer
from taskd.core.endings import may_be_told_to_end
from taskd.core.mismatch import find_mismatches
from taskd.core.scene import Found, Scene, accuse
from taskd.core.verdict import Kind, names

_AT_ONCE_S: Final = 0.05
"""Ends that are closer together are told of as if they came together: ages are not more exact."""
_NO_FAILURES: Final = (Kind.COLLATERAL, Kind.EXITED_EARLY)
_MAY_FOLLOW: Final = (Kind.ABORTED, Kind.EXITED)


def _failed(scene: Scene) -> list[int]:
    return [rank for rank, row in scene.ends.items() if row.kind not in _NO_FAILURES]


def _weak(scene: Scene, rank: int) -> bool:
    kind, known = scene.ends[rank].kind, scene.evidence[rank]
    told_to_end = kind is Kind.KILLED and known.ending is not None and may_be_told_to_end(known.ending)
    return kind in _MAY_FOLLOW or told_to_end or (kind is Kind.EXCEPTION and may_blame_peer(known))


def by_themselves(scene: Scene) -> Found | None:
    """Failures that nobody else can have caused, and those that came before the first of them."""
    failed = _failed(scene)
    strong = {rank for rank in failed if not _weak(scene, rank)}
    first = [rank for rank in _first(scene, failed) if _age(scene, rank) is not None]
    return accuse(scene, strong.union(first), scene.ends) if strong else None


def perhaps_by_others(scene: Scene) -> Found | None:
    """The first of the weak failures."""
    return accuse(scene, _first(scene, _failed(scene)), scene.ends)


def _age(scene: Scene, rank: int) -> float | None:
    ending = scene.evidence[rank].ending
    return ending.age_s if ending is not None else None


def _first(scene: Scene, failed: Collection[int]) -> list[int]:
    """Those of which it cannot be said that they came after another one."""
    ages = {rank: _age(scene, rank) for rank in failed}
    first_s = max((age for age in ages.values() if age is not None), default=0.0)
    return [rank for rank, age in ages.items() if age is None or age >= first_s - _AT_ONCE_S]


def too_early(scene: Scene) -> Found | None:
    """Ended with status 0 while others wait for it, or have failed after it."""
    left = [rank for rank in scene.ended(Kind.EXITED_EARLY) if not _finished(scene, rank)]
    if len(left) == len(scene.members):
        return None
    followers = [age for age in (_age(scene, rank) for rank in scene.ended(*_MAY_FOLLOW)) if age is not None]
    newest_s = min(followers, default=None)
    missed = [
        rank
        for rank in left
        if scene.disturbed
        or left_by_itself(scene.evidence[rank]) is not None
        or rank in scene.waits.late
        or (newest_s is not None and (_age(scene, rank) or 0.0) > newest_s + _AT_ONCE_S and _silent_ends(scene))
    ]
    return accuse(scene, missed, scene.ends)


def _silent_ends(scene: Scene) -> bool:
    """Every failure looks as an uncaught exception does that nobody has noted: an abort, or status 1."""
    endings = (scene.evidence[rank].ending for rank in _failed(scene))
    return all(ending is not None and ending.status in (None, 1) for ending in endings)


def _finished(scene: Scene, rank: int) -> bool:
    ending = scene.evidence[rank].ending
    return ending is not None and ending.finished


def mismatched(scene: Scene) -> Found | None:
    """Ranks that made another call than the others."""
    if not scene.disturbed and not _failed(scene):
        return None
    facts = []
    for mismatch in find_mismatches(scene.evidence, scene.ends):
        for rank, deviation in mismatch.deviations.items():
            others = f" ({names(mismatch.others)})" if mismatch.others else ""
            more = f": {operation(deviation.made)}, where the others{others} have {operation(deviation.usual)}"
            facts.append(finding(rank, deviation.kind, scene.evidence[rank], more=more))
    if not facts and any(blames_sizes(known) for known in scene.evidence.values()):
        return Found([], Kind.SIZE_MISMATCH, ("gloo has received more than a rank had asked for",))
    return Found(facts) if facts else None
