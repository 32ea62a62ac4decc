"""The diagnosis of the newest fault: when ranks are probed, what their answers come to, and what is reported.

Rules:

1. A death is recovered from at once: evidence explains it and delays nothing.
2. A diagnosis is reported once for a fault, and again only if its kind or its culprits change.
3. Slow ranks and losses that are not finite are reported and change nothing (`pace.py`).

The functions that take a time are effects, `(job, now_s, …)`; what they know of the ranks is in `Case.watch`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from taskd.core.diagnosis.diagnose import lost_with_node
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.findings import Diagnosis, Kind
from taskd.core.diagnosis.rhythm import Activity, Hang
from taskd.core.diagnosis.watch import Watch
from taskd.core.recovery.actions import Diagnosed, Note
from taskd.core.recovery.orders import send
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Order

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job

OWN_ERRORS: Final = (Kind.EXCEPTION, Kind.DISK_FULL, Kind.OOM_HOST, Kind.OOM_DEVICE, Kind.EXITED, Kind.EXITED_EARLY)
"""What a rank says of itself, and nobody needs to be asked for."""
OF_THE_LIVING: Final = (Kind.SIZE_MISMATCH, Kind.OP_MISMATCH, Kind.SKIPPED)
"""What ranks may differ in though every process lives."""
STEPS_AHEAD: Final = 2
"""So far others may come after a rank has failed."""


@dataclass(slots=True)
class Case:
    """The state of the job's newest diagnosis."""

    watch: Watch = field(default_factory=Watch)
    faults: int = 0
    """Faults that were given a number."""
    open: bool = False
    """The fault with the newest number is under way."""
    opened_at: int = -1
    """The newest step at that time."""
    reported: tuple[Kind, tuple[JobRank, ...]] | None = None
    since_s: float | None = None
    """When the fault was first known."""


def open_case(job: "Job", now_s: float, *, again: bool = False) -> None:
    """A fault has a number from now on. `again`: it had one, and is looked into once more."""
    case = job.case
    case.faults += not again
    case.open, case.reported = True, None
    case.opened_at = max(job.step, case.watch.newest_step())
    case.since_s = now_s if case.since_s is None else case.since_s


def close_case(job: "Job") -> None:
    """Nothing more is expected of this fault."""
    job.case.open, job.case.since_s = False, None


# ---- what is asked


def ask(job: "Job", now_s: float, hang: Hang | None) -> None:
    """The next directive carries a question, by a number that no other manager has asked by."""
    job.orders.probe = job.orders.sequence + 1
    job.case.watch.ask(job.orders.probe, now_s, hang)


def probe(job: "Job", now_s: float, hang: Hang | None) -> None:
    """Ask every rank what it is about."""
    ask(job, now_s, hang)
    job.case.since_s = hang.since_s if hang is not None else now_s
    send(job, now_s, Order.RUN)


def probe_strayed(job: "Job", now_s: float) -> None:
    """A rank has strayed, and no news has come yet: ask every rank, once. If one has ended, others may follow."""
    if job.case.watch.asked_s is None and not job.ended():
        probe(job, now_s, None)


def take_up(job: "Job", now_s: float, *, explained: bool) -> None:
    """A fault begins; if its causes do not explain it, the others are asked: that delays nothing."""
    if not job.case.open:
        open_case(job, now_s)
    job.case.watch.asked_s = None
    if job.case.watch.hang is None and not explained:
        ask(job, now_s, None)  # it goes out with the order that follows


def look_into(job: "Job", now_s: float, hang: Hang) -> None:
    """Ask every rank of a new world, whose order stays. What is known of the dead belongs to the world before."""
    job.case.watch.close()
    ask(job, now_s, hang)
    job.orders.due = True


def expected(job: "Job") -> list[str]:
    """The agents that can be asked."""
    world = job.world
    return [world.nodes.holders[place] for place in world.places if place not in world.nodes.dead_nodes]


def all_answered(job: "Job") -> bool:
    """Whether every agent that can be asked has answered an open question."""
    watch = job.case.watch
    return watch.asked_s is not None and watch.answered >= set(expected(job))


# ---- what follows from the answers


def withdraw(job: "Job", now_s: float, *, glanced: bool = False, note: str = "") -> None:
    """The suspicion was wrong, or waits. `glanced`: what the job has shown explains it so far."""
    if glanced:
        job.case.watch.glanced(now_s)
    if note:
        job.out.append(Note(note))
    job.case.watch.close()


def announce(job: "Job", _now_s: float, place: NodeRank, activity: Activity, since_s: float) -> None:
    """This is why nothing was committed since then."""
    job.case.watch.rhythm.announce(place, activity, since_s)


def doubt(job: "Job", now_s: float, fault: int) -> None:
    """The suspicion is not proven: it is asked about again."""
    job.case.watch.wait(fault, now_s)


def count_alarm(job: "Job", _now_s: float) -> None:
    """The suspicion was well founded, as far as can be said."""
    job.case.watch.alarm()


def report_once(job: "Job", now_s: float) -> None:
    """Report a fault that nothing is done about."""
    open_case(job, now_s)
    report_diagnosis(job, now_s, live=True)
    close_case(job)


def replace_culprits(job: "Job", now_s: float, ranks: Collection[JobRank], *, proven: bool) -> None:
    """Whoever is named is replaced. What is not proven may have been work that is interrupted now."""
    watch, case = job.case.watch, job.case
    told, hang = watch.doubt, watch.hang
    if told is not None and hang is not None and (told.since_s, told.fault) == (hang.since_s, case.faults):
        open_case(job, now_s, again=True)
    if not proven:
        watch.rhythm.rhythm.interrupt(now_s)
    for rank in ranks:
        job.world.replace(rank, now_s, joins=True)


# ---- what is reported


def report_diagnosis(job: "Job", now_s: float, *, live: bool = False) -> None:
    """Report what the fault is, as far as it is known, unless that was reported. `live`: the ranks train."""
    record, watch = job.record, job.case.watch
    if record is not None and record.diagnosis is not None and record.diagnosis.kind is Kind.CORRUPTED:
        return  # no evidence of the processes shows it
    diagnosis = watch.diagnosis(_members(job, now_s), now_s)
    if diagnosis is None:
        return
    if record is None and not diagnosis.proven and job.policy.recover_hangs:
        text = f"Unless it gets on, it is recovered from in {watch.unproven_s:.0f} s (TASKD_HANG_UNPROVEN_S)."
        diagnosis = replace(diagnosis, sentence=f"{diagnosis.sentence} {text}")
    if record is not None:
        record.diagnosis = diagnosis
        record.step = max(record.step, watch.newest_step())
    _report_if_new(job, now_s, diagnosis, live=live)


def _members(job: "Job", now_s: float) -> Collection[JobRank]:
    """Return the ranks to diagnose. If all processes are replaced, a rank without evidence is not a silent one."""
    if job.record is None or not (job.record.decision.renews or job.record.decision.restart):
        return job.world.ranks
    return job.case.watch.evidence(now_s).keys() & job.world.ranks.keys()


def report_lost_node(job: "Job", now_s: float, ranks: Collection[JobRank], text: str) -> None:
    """Ranks are lost with their node, of which no evidence can come."""
    diagnosis = lost_with_node(ranks, text)
    if job.record is not None and job.record.diagnosis is None:
        job.record.diagnosis = diagnosis
    _report_if_new(job, now_s, diagnosis, live=False)


def _report_if_new(job: "Job", now_s: float, diagnosis: Diagnosis, *, live: bool) -> None:
    case = job.case
    if case.reported != (diagnosis.kind, diagnosis.culprits):
        case.reported = diagnosis.kind, diagnosis.culprits
        quiet = job.record is not None or (live and case.open and diagnosis.kind in OWN_ERRORS)
        report(job, now_s, diagnosis, case.watch.evidence(now_s), reported=not quiet)


def report(
    job: "Job", now_s: float, diagnosis: Diagnosis, evidence: Mapping[JobRank, Evidence], *, reported: bool
) -> None:
    """The newest fault has this diagnosis. `reported`: nothing else tells of it."""
    job.out.append(
        Diagnosed(
            fault=job.case.faults,
            diagnosis=diagnosis,
            evidence=evidence,
            hang=job.case.watch.hang,
            since_s=now_s if job.case.since_s is None else job.case.since_s,
            step=max(job.step, job.case.watch.newest_step()),
            generation=job.world.generation,
            reported=reported,
        )
    )
