"""Collection of evidence on one node's processes: from /proc, cgroups, black boxes and the processes' own accounts.

Rules:

1. Every source may be missing. Nothing here raises for that: a value that cannot be known is None.
2. A process's report on itself holds for that process only. Its children may outlive it and are still collected.
3. The evidence of a rank costs a fraction of a millisecond and never waits for the rank. It waits only for a file
   system that may be full: 50 ms at most, and only if something could not be written.
"""

import re
from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from taskd.core.diagnosis.evidence import (
    Child,
    Ending,
    Evidence,
    Frames,
    LockFile,
    NonFinite,
    Process,
    Standing,
    Thread,
)
from taskd.runtime.agent.box_evidence import tell
from taskd.runtime.agent.disks import full_disk
from taskd.runtime.agent.threads import Look, compare, look
from taskd.runtime.box.blackbox import Box
from taskd.runtime.system.cgroups import CgroupWatch, Counters
from taskd.runtime.system.processes import ProcessWatch
from taskd.wire.accounts import Account
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import SawNonFinite

FRESH_S: Final = 5.0
"""Time for which a process's account of itself holds."""
_MOST_FORMER: Final = 4
_NOT_WRITTEN: Final = re.compile(r"PytorchStreamWriter|unexpected pos|failed writing|write error|No space left|OSError")
_STANDINGS: Final = {standing.value: standing for standing in Standing}


@dataclass(slots=True)
class _KnownProcess:
    """Records on the process that holds a rank."""

    pid: int
    incarnation: int
    observer: ProcessWatch
    cgroup_watch: CgroupWatch
    first: Look | None = None
    """Activity of its threads when the job was first found to make no step."""
    first_step: int = -2
    """Newest step at that time."""
    former: deque[ProcessWatch] = field(default_factory=lambda: deque(maxlen=_MOST_FORMER))
    """Earlier processes of the rank, as long as one of their children lives."""
    left: dict[int, Child] = field(default_factory=dict)
    """Children that it had when its end was detected. They may have been killed since."""
    account: Account | None = None
    heard_s: float = 0.0
    non_finite: NonFinite | None = None


class EvidenceCollector:
    """Collector of the evidence of all ranks of one node. For use by one thread."""

    def __init__(self) -> None:
        self._ranks: dict[JobRank, _KnownProcess] = {}
        self._counters = Counters()

    def begin(self, rank: JobRank, pid: int, incarnation: int) -> None:
        """Begin the records on a started process that holds this rank, with the present counters of its cgroup.

        Drop the records on the rank's former process, except for children that it may have left.
        """
        former = self._ranks.get(rank)
        known = self._ranks[rank] = _KnownProcess(pid, incarnation, ProcessWatch(pid), CgroupWatch(pid, self._counters))
        if former is not None:
            known.former.extend(former.former)
            known.former.append(former.observer)

    def look(self, rank: JobRank) -> None:
        """Record the activity and the cgroup of the rank's process: the next evidence shows the difference.

        Call it some time before `take`: with each heartbeat, and at the latest with the request for the rank's account.
        Costs some 50 us.
        """
        known = self._ranks.get(rank)
        if known is not None:
            known.observer.look()
            known.cgroup_watch.look()

    def watch(self, rank: JobRank, step: int | None = None) -> None:
        """Record the activity of the rank's threads, because it makes no step after `step`; once for each step.

        Without a step, record it anew: the next evidence compares with now. Costs some milliseconds for a process of
        many threads, once for each step that is watched.
        """
        known = self._ranks.get(rank)
        if known is None:
            return
        if step is None or known.first is None or known.first_step != step:
            known.first, known.first_step = look(known.pid), known.first_step if step is None else step

    def hear(self, rank: JobRank, message: Account | SawNonFinite) -> None:
        """Record a report of the rank's process on itself."""
        known = self._ranks.get(rank)
        if known is None:
            return
        if isinstance(message, Account):
            known.account, known.heard_s = message, monotonic()
        else:
            known.non_finite = NonFinite(message.step, message.what, message.value)

    def take(
        self,
        rank: JobRank,
        pid: int,
        box: Box | None,
        *,
        node: NodeRank | None,
        ending: Ending | None = None,
        events: int = 48,
    ) -> Evidence:
        """Return the present evidence on the rank's process `pid`, with at most `events` ended collectives.

        With `ending` the process has ended or is about to. Without it, its black box or /proc decides.
        """
        known = self._ranks.get(rank)
        if known is None or known.pid != pid:
            self.begin(rank, pid, known.incarnation if known is not None else 0)
            known = self._ranks[rank]
        told = tell(box, events)
        gone = ending is not None or told.end.life_lost is True
        process = _with_orphans(known.observer.report(ending=gone), known)
        gone = gone or process.state is None
        if not gone and known.first is not None:
            process = replace(process, still=compare(pid, known.first))
        evidence = replace(
            told,
            node=node,
            process=process,
            cgroup=known.cgroup_watch.report(gone=process.state is None),
            end=replace(told.end, ending=ending),
            non_finite=known.non_finite,
        )
        if not gone:
            evidence = _with_account(evidence, known)
        if _may_lack_space(evidence):
            evidence = replace(evidence, blockers=replace(evidence.blockers, full_disk=full_disk(pid)))
        return evidence


def _with_account(evidence: Evidence, known: _KnownProcess) -> Evidence:
    """Add the newest account, if it still holds. Its activity has no age if the box holds another activity."""
    account = known.account
    if account is None or monotonic() - known.heard_s > FRESH_S:
        return evidence
    threads = tuple(Thread(thread.name, thread.stack) for thread in account.threads)
    frames = Frames(threads[0].stack if threads else (), threads)
    blockers, position = evidence.blockers, evidence.position
    if account.lock is not None:
        lock_file = LockFile(account.lock.path, account.lock.owner, account.lock.pid, account.lock.stale)
        blockers = replace(blockers, lock_file=lock_file)
    said = _STANDINGS.get(account.standing)
    if said is not None and said is not position.standing:
        position = replace(position, standing=said, standing_s=None)
    return replace(evidence, position=position, blockers=blockers, frames=frames)


def _with_orphans(process: Process, known: _KnownProcess) -> Process:
    """Add the children that the process left when its end was detected, and those that its predecessors left."""
    known.left = {child.pid: child for child in process.orphans} | known.left
    found = dict(known.left)
    for former in list(known.former):
        left = former.left()
        found |= {child.pid: child for child in left}
        if not left:
            known.former.remove(former)
    return replace(process, orphans=tuple(found.values()))


def _may_lack_space(evidence: Evidence) -> bool:
    error = evidence.end.error
    return (error is not None and _NOT_WRITTEN.search(error.text) is not None) or (
        evidence.position.standing is Standing.CHECKPOINT and not evidence.gone
    )
