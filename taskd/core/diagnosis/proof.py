"""Proof of a hang: its culprits provably cannot go on by themselves, or they may still be at work.

Rules:

1. These are proven:
   - a process that is stopped or frozen;
   - calls that differ where they must be the same;
   - a process of which no thread has run, and whose threads all wait for a lock that only the process can release;
   - a wait for a lock file whose owner is dead;
   - uninterruptible sleep while no disk does anything;
   - data that do not arrive while no rank sends.
2. Everything else may be at work. It computes, reads, writes, waits for a child, a socket or a timer, or could not be
   inspected closely. It is reported, and acted upon only after `unproven_s` (`core/diagnosis/watch.py`).
3. If any of several culprits are proven, only those count.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from taskd.core.diagnosis.evidence import Evidence, RunState, Stillness
from taskd.core.diagnosis.findings import Finding, Kind
from taskd.core.diagnosis.jobview import Found, JobView

_BY_THEMSELVES: Final = {
    Kind.FROZEN: "its cgroup is frozen",
    Kind.STOPPED: "it is stopped",
    Kind.OP_MISMATCH: "the calls differ",
    Kind.SIZE_MISMATCH: "the sizes differ",
    Kind.SKIPPED: "no rank will join the collective that the others wait in",
    Kind.EXITED_EARLY: "its process has ended",
    Kind.SILENT: "nothing is heard of its node",
}
_MAY_SLEEP: Final = (Kind.DEADLOCK, Kind.BLOCKED, Kind.GIL_HELD, Kind.BEHIND, Kind.DATA_BLOCKED, Kind.LOOP)
_QUIET_BYTES: Final = 4096
_STARTING: Final = "the start of a process"
_LOCKS: Final = ("a lock", "a lock, with a time limit")
_FILE_SERVER: Final = re.compile(r"nfs|rpc|fuse|lustre|\bll_|ceph|smb|cifs|gpfs|9p")
_BUSY_CHILD: Final = (RunState.RUNNING, RunState.UNINTERRUPTIBLE)


class Proof(NamedTuple):
    """A decision whether a hang is certain, and the reason."""

    proven: bool
    why: str


CERTAIN: Final = Proof(True, "")
"""Proof of a fault that is detected without a hang."""


def prove(view: JobView, found: Found, kind: Kind) -> tuple[Proof, list[Finding]]:
    """Return whether the diagnosis of a hang is certain, and the findings that then remain."""
    facts = found.facts
    if found.doubt:
        return Proof(False, found.doubt), facts
    if not facts:
        return _prove_all(view, kind), []
    proofs = {fact.rank: _prove_rank(view.evidence.get(fact.rank), fact.kind) for fact in facts}
    proven = [fact for fact in facts if proofs[fact.rank].proven]
    left = proven or list(facts)
    whys = dict.fromkeys(proofs[fact.rank].why for fact in left)
    return Proof(bool(proven), "; ".join(whys)), left


def _prove_rank(known: Evidence | None, kind: Kind) -> Proof:
    if kind in _BY_THEMSELVES:
        return Proof(True, _BY_THEMSELVES[kind])
    if kind is Kind.CONNECTION_CUT:
        return Proof(True, "nodes say so")
    if known is None or known.gone:
        return Proof(True, "its process has ended")
    lock_file = known.blockers.lock_file
    if kind is Kind.LOCK_FILE and lock_file is not None:
        return Proof(lock_file.stale, f"of the lock, {lock_file.owner}")
    still = known.process.still if known.process is not None else None
    if still is None:
        return Proof(False, "its threads could not be looked at twice")
    return _prove_uninterruptible(known, still) if kind is Kind.UNINTERRUPTIBLE else _prove_sleep(still, kind)


def _prove_sleep(still: Stillness, kind: Kind) -> Proof:
    moved = _moved(still) or ", ".join(still.waits)
    if moved:
        return Proof(False, moved)
    if kind in _MAY_SLEEP:
        why = f"for {still.window_s:.1f} s none of its threads has run, and all wait for locks of its own"
        return Proof(True, why)
    return Proof(False, "its device may be at work")


def _moved(still: Stillness) -> str:
    """Return the evidence of activity in the process; "" if there is none."""
    if still.ran:
        return ", ".join(still.ran)
    if still.io_bytes is not None and still.io_bytes > _QUIET_BYTES:
        return f"it has read and written {still.io_bytes} bytes in {still.window_s:.1f} s"
    return ""


def _prove_uninterruptible(known: Evidence, still: Stillness) -> Proof:
    process = known.process
    moved = _moved(still)
    if moved or process is None:
        return Proof(False, moved)
    if still.main == _STARTING:
        at_work = any(child.state in _BUSY_CHILD for child in process.children)
        return Proof(not at_work, "the process that it starts runs" if at_work else "the process that it starts stands")
    if _FILE_SERVER.search(process.wchan or ""):
        return Proof(False, "a file server may answer late")
    if still.disks_idle:
        return Proof(True, f"for {still.window_s:.1f} s no disk has done anything")
    return Proof(False, "a disk is at work" if still.disks_idle is False else "whether disks are at work is not known")


def doubt(evidence: Iterable[Evidence]) -> str:
    """Return why it is not certain that these processes only wait in their collectives; "" if it is."""
    for known in evidence:
        still = known.process.still if known.process is not None else None
        if still is None:
            return "their threads could not be looked at twice"
        moved = _moved(still) or ("" if still.main in _LOCKS else f"a main thread waits for {still.main}")
        if moved:
            return moved
    return ""


def _prove_all(view: JobView, kind: Kind) -> Proof:
    """Prove a hang without culprits: any process that is at work might end it."""
    if kind in _BY_THEMSELVES:
        return Proof(True, _BY_THEMSELVES[kind])
    why = doubt(known for _, known in sorted(view.evidence.items()) if not known.gone)
    return Proof(not why, why or "all wait, and none sends or computes")
