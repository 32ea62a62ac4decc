"""Observations of one node's agent on its ranks: their progress and, after a probe or a death, their evidence.

Rules:

1. Progress is read from the black boxes, so it costs a step nothing.
2. A probe requests an account from every process, and waits `ACCOUNT_S` for those that can give one and have not. Then
   the evidence of box, /proc and cgroup is taken, of all ranks at one moment.
3. Each probe is answered once. The evidence of a death is sent without a probe, `HELD_S` after the report of the death.
   So the manager gives its orders first.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec

from taskd.core.agent import Node, RankState
from taskd.core.diagnosis.conditions import cannot_answer, holds_still
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.membership.heartbeats import HELD_S
from taskd.errors import ShimError
from taskd.runtime.agent.native_stacks import take_native
from taskd.runtime.agent.pace import Pacer, newest_commit
from taskd.runtime.agent.supervisor import RankSupervisor
from taskd.runtime.box.blackbox import Box
from taskd.wire.accounts import Account
from taskd.wire.codec import pack, sendable
from taskd.wire.kinds import JobRank
from taskd.wire.messages import (
    AccountRequest,
    EvidenceReport,
    Progress,
    RankSpan,
    Refuses,
    SawNonFinite,
    SelfReport,
    SetupRecorded,
)

OfItself = Account | SawNonFinite | SelfReport | Refuses | SetupRecorded
"""Messages of a rank's process about itself."""
ACCOUNT_S = 0.2
SILENT_S = 0.5
"""Time without a commit after which a rank's threads are recorded, in case that a probe follows."""
LOOK_S = 0.9
"""Interval between measurements of the ranks' pace and cgroups: each fourth heartbeat. At each heartbeat they cost a
step 0.2 %."""
NATIVE_S = 0.06
"""Limit for py-spy, which the diagnosis waits for. It suffices for Python's frames (some 25 ms), and for quick native
ones."""


def progress_of(box: Box) -> Progress | None:
    """Return the progress of a rank; None if it does not train, or if its box holds impossible values."""
    try:
        newest = newest_commit(box)
    except ShimError:
        return None
    if newest is None:
        return None
    step, since_ns = newest
    found = Progress(step=step, age_s=max(0.0, (time.monotonic_ns() - since_ns) / 1e9))
    return found if sendable(found) else None


class Observer:
    """Observer of one agent's ranks."""

    def __init__(self, job_id: str, supervisor: RankSupervisor, proof: str) -> None:
        self._job_id = job_id
        self._proof = proof
        self._supervisor = supervisor
        self._pacers: dict[tuple[JobRank, int], Pacer] = {}
        self._looked_s = 0.0
        self._answered = 0
        """Newest probe that was answered or is being answered."""
        self._asked: set[JobRank] = set()
        self._mute: set[JobRank] = set()
        """Ranks among them that cannot answer, by box, /proc and cgroup. The answer does not wait for them."""
        self._due_s: float | None = None
        self._behind_report_s: float | None = None
        """Time at which the evidence of deaths that were just reported is due."""

    # ---- at each heartbeat

    def look(self, node: Node, *, in_haste: bool = False) -> tuple[Progress | None, tuple[RankSpan, ...]]:
        """Return the progress of this node's ranks, and their pace; the pace is left out `in_haste`."""
        newest: Progress | None = None
        now_s = time.monotonic()
        closely = not in_haste and now_s - self._looked_s >= LOOK_S
        self._looked_s = now_s if closely else self._looked_s
        spans = []
        for rank, pid, box in self._boxes(node):
            if closely:
                self._supervisor.collector.look(rank)
            progress = progress_of(box)
            if progress is None:
                continue
            if closely and progress.age_s >= SILENT_S:
                self._supervisor.collector.watch(rank, progress.step)
            span = self._span(rank, pid, box) if closely else None
            if span is not None:
                spans.append(span)
            if newest is None or (progress.step, progress.age_s) > (newest.step, newest.age_s):
                newest = progress
        return newest, tuple(spans)

    def newest_step(self, node: Node) -> int:
        """Return the newest step that a rank of this node has committed; -1 without any."""
        newest = -1
        for _, _, box in self._boxes(node):
            with suppress(ShimError):
                found = newest_commit(box)
                newest = newest if found is None else max(newest, found[0])
        return newest

    def _span(self, rank: JobRank, pid: int, box: Box) -> RankSpan | None:
        try:
            found = self._pacer(rank, pid).look(box, time.monotonic_ns())
        except ShimError:
            return None
        return found if found is not None and sendable(found) else None

    def _pacer(self, rank: JobRank, pid: int) -> Pacer:
        if (rank, pid) not in self._pacers:
            self._pacers = {key: pacer for key, pacer in self._pacers.items() if key[0] != rank}
            self._pacers[rank, pid] = Pacer(rank)
        return self._pacers[rank, pid]

    def _boxes(self, node: Node) -> Iterable[tuple[JobRank, int, Box]]:
        for rank, slot in node.slots.items():
            box = self._supervisor.processes.box(rank) if slot.state is RankState.RUNNING else None
            if box is not None:
                yield rank, slot.status.pid, box

    # ---- a probe

    def answer_probe(self, node: Node, probe: int) -> None:
        """Begin to answer a probe of the manager: request the processes' accounts."""
        if probe in (0, self._answered):
            return
        self._answered, self._due_s = probe, time.monotonic() + ACCOUNT_S
        self._asked = self._supervisor.processes.tell_all(AccountRequest(number=probe))
        for rank in node.slots:
            self._supervisor.collector.look(rank)
        live = [rank for rank in self._asked if rank in node.slots]
        self._mute = {rank for rank in live if cannot_answer(self._take(node, rank))}

    def hear(self, rank: JobRank | None, message: OfItself, node: Node) -> None:
        """Record a message of a process about itself, if the process holds a rank."""
        if rank is None:
            return
        if isinstance(message, SetupRecorded):
            self._supervisor.processes.recorded_setup(rank, message.digest)
            return
        if isinstance(message, Refuses):
            node.refuses(rank, message)
            return
        if isinstance(message, SelfReport):
            node.last_words(rank, message.cause, message.kind)
            self._supervisor.seen[rank] = self._take(node, rank)
            return
        self._supervisor.collector.hear(rank, message)
        if isinstance(message, Account):
            self._asked.discard(rank)
        elif rank in node.slots:
            self._supervisor.seen[rank] = self._take(node, rank)

    @property
    def due_s(self) -> float | None:
        """Latest time at which `evidence_reports` has something to send; None if nothing is to be sent."""
        return min((due_s for due_s in (self._due_s, self._behind_report_s) if due_s is not None), default=None)

    def evidence_reports(self, node: Node, now_s: float, reported_s: float) -> list[EvidenceReport]:
        """Return the reports to send to the manager now. The agent sent its newest status at `reported_s`."""
        out = []
        if self._supervisor.seen and self._behind_report_s is None:
            self._behind_report_s = reported_s + HELD_S
        if self._behind_report_s is not None and now_s >= self._behind_report_s:
            found, self._supervisor.seen, self._behind_report_s = self._supervisor.seen, {}, None
            out.append(self._evidence_report(node, 0, found))
        if self._due_s is not None and (self._asked <= self._mute or now_s >= self._due_s):
            self._due_s = None
            live = [rank for rank, slot in node.slots.items() if slot.state is RankState.RUNNING]
            evidence = {rank: self._take(node, rank) for rank in live}
            for rank in sorted(self._asked & evidence.keys()):  # the stacks of one of them are enough
                if holds_still(evidence[rank]):
                    continue  # it was stopped from outside: the place means nothing
                native = take_native(node.slots[rank].status.pid, NATIVE_S)
                known = evidence[rank]
                evidence[rank] = replace(known, frames=replace(known.frames, native=native))
                break
            out.append(self._evidence_report(node, self._answered, evidence))
            for rank in live:
                self._supervisor.collector.watch(rank)  # the next probe is about the time after this one
        return out

    def _take(self, node: Node, rank: JobRank) -> Evidence:
        pid = node.slots[rank].status.pid
        return self._supervisor.collector.take(rank, pid, self._supervisor.processes.box(rank), node=node.place)

    def _evidence_report(self, node: Node, probe: int, evidence: dict[JobRank, Evidence]) -> EvidenceReport:
        return EvidenceReport(
            job_id=self._job_id,
            agent_id=node.agent_id,
            proof=self._proof,
            probe=probe,
            evidence={rank: msgspec.Raw(pack(known)) for rank, known in evidence.items()},
        )
