"""While the ranks train, and from there into a fault.

Rules:

1. A rank that comes out of its collectives, or fails before any step, is mostly explained by the news of another: that
   is awaited (`Strayed`). Whoever fails in that time belongs to it.
2. The ranks of a job without progress are probed (`Suspecting`). A diagnosis that names living ranks has them replaced,
   as if they had died. One that names nobody leaves all processes alive: the step is done again.
3. An agent that does not answer is waited for as long as it may be silent: whether its node is lost is not judged here.
   One that is heard is probed again. A diagnosis that names all ranks is only reported, until it has come repeatedly.
4. A diagnosis on a hang that is not proven is reported at once, and acted upon after `unproven_s` (`watch.py`).
   That spends no restart: it may have been a false alarm.
5. Nor does a warm process that fails early after a start of all processes, where a cold one may not (`warmth.py`).
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from taskd.core.diagnosis.findings import Diagnosis, Finding, Kind
from taskd.core.diagnosis.watch import AGAIN_S, ANSWER_S
from taskd.core.policy import Strategy
from taskd.core.recovery import case, set_up
from taskd.core.recovery.actions import Effect, Next, Note, do
from taskd.core.recovery.attempts import agree, progress, rearrange, release
from taskd.core.recovery.causes import Cause, CauseKind
from taskd.core.recovery.events import (
    DONE,
    DUMPED,
    RESUMED,
    Answered,
    Committed,
    Dumped,
    Exited,
    Expired,
    Finished,
    Formed,
    Hung,
    Lost,
    Paused,
    RestartAsked,
    Started,
)
from taskd.core.recovery.handlers.common import end, fault, give_up
from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import send
from taskd.core.recovery.phases import Choosing, Finishing, Forming, Running, Strayed, Suspecting, Training
from taskd.core.recovery.planning import note
from taskd.core.recovery.takeover import take_over
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Order, Stage

_QUESTIONS: Final = 3
"""So often an agent that is heard is asked."""
_QUIET_HEARTBEATS: Final = 1.5
"""An agent that was not heard for so many heartbeats is perhaps lost."""


def formed(_phase: Forming, event: Formed, job: Job, now_s: float) -> Next:
    """The job is there when all of its nodes are; a job of an earlier manager, when enough of them are."""
    known = do(agree) if event.ledger is None else do(take_over, event.ledger)
    return Running(now_s), (known, do(send, Order.RUN))


def lose(phase: Training, event: Lost, job: Job, now_s: float) -> Next:
    """A process ended while training: a fault begins."""
    fatal = job.fatal(event.rank)
    if fatal:
        return give_up(now_s, fatal)
    ended = job.ended()
    early = [rank for rank in ended if job.failed_to_start(rank, now_s)]
    learned = tuple(do(set_up.learn, rank) for rank in early)
    if len(early) == len(ended) and all(set_up.only_too_warm(job, rank) for rank in early):
        return fault(now_s, ended, free=True, before=(*learned, do(set_up.tell, early[0])))
    if len(early) == len(ended) < len(job.world.ranks):
        waits, _ = _await_news(phase, now_s, job.policy.deadlines.merge_s)  # if all fail alike, it is a bug
        return waits, learned
    return fault(now_s, ended, before=learned)


def stray(phase: Training, _event: Paused, job: Job, now_s: float) -> Next:
    """A rank came out of its collectives on its own. Mostly a peer is dead, and that news is on its way."""
    ended = job.ended()
    return fault(now_s, ended) if ended else _await_news(phase, now_s, job.policy.deadlines.confirm_s)


def _await_news(phase: Training, now_s: float, wait_s: float) -> Next:
    """Begin nothing yet: what comes until then tells what has happened."""
    return (Strayed(now_s, now_s + wait_s), ()) if isinstance(phase, Running) else (phase, ())


def note_progress(phase: Training, _event: Committed, job: Job, _now_s: float) -> Next:
    """A step was committed outside any recovery; by every rank, it is progress."""
    if job.budget is not None and job.budget.remembers and job.world.all_at(RESUMED):
        return phase, (do(progress),)
    return phase, ()


def finish(phase: Training, _event: Started | Finished | Exited, job: Job, now_s: float) -> Next:
    """When every rank's resilient function has returned (or is known to have been let go), let them go."""
    if not job.world.all_at(DONE):
        return phase, ()
    return Finishing(now_s), (do(case.withdraw), do(release), do(send, Order.RELEASE))


def start_anew(_phase: Running, event: RestartAsked, _job: Job, now_s: float) -> Next:
    """Nothing has failed, and nothing is charged. The strategies of the job are for faults, and are not asked."""
    text = f"rank {event.rank}: {event.reason}"
    return Choosing(now_s), (do(rearrange, Strategy.RECOVER_IN_PLACE, text, {}, restart=True),)


def leave(phase: Training, event: Exited, job: Job, now_s: float) -> Next:
    """A process ended with status 0; the job is done when all have."""
    if len(job.world.exited()) == len(job.world.ranks):
        return end(now_s, "every rank exited with status 0", 0)
    return finish(phase, event, job, now_s)


def leave_others(phase: Strayed | Suspecting, event: Exited, job: Job, now_s: float) -> Next:
    """The same while a rank has come out: that was the reason."""
    if job.world.at_stage(Stage.PAUSED):
        return fault(now_s, job.ended())
    return leave(phase, event, job, now_s)


def unexplained(phase: Strayed, _event: Expired, job: Job, now_s: float) -> Next:
    """No loss was reported: whoever has left is the culprit, or every process lives."""
    ended = job.ended()
    starting = any(view.starting for view in job.world.ranks.values())
    if not ended and starting and now_s - phase.since_s < job.policy.deadlines.replace_s:
        return replace(phase, until_s=now_s + job.policy.deadlines.confirm_s), ()
    return fault(now_s, ended or {rank: job.cause(rank) for rank in job.world.at_stage(Stage.PAUSED)})


def dumped_before(phase: Training, event: Dumped, job: Job, now_s: float) -> Next:
    """A former manager had a checkpoint written, and was gone before it could end the job."""
    stages = [view.at(job.world.generation) for view in job.world.ranks.values()]
    if not all(stage in (None, *DUMPED) for stage in stages):  # ranks of an older generation had no part in it
        return phase, ()
    known = job.world.ranks[event.rank].known
    at = f" of step {known.step}" if known is not None else ""
    return end(now_s, f"an earlier manager ended the job; a checkpoint{at} was written")


# ---- a job without progress


def suspect(phase: Running, _event: Hung, job: Job, now_s: float) -> Next:
    """The job makes no progress: ask every rank."""
    hang = job.case.watch.question(now_s)
    if hang is None:
        return phase, ()
    return Suspecting(now_s, now_s + ANSWER_S), (do(case.probe, hang),)


def explain(phase: Strayed, _event: Answered, job: Job, now_s: float) -> Next:
    """All that can be known of why a rank has come out is known."""
    ended = job.ended()
    if ended:
        return fault(now_s, ended)
    diagnosis = job.case.watch.diagnosis(job.world.ranks, now_s)
    if diagnosis is not None and diagnosis.kind in case.OF_THE_LIVING:
        return _accuse(diagnosis, job, now_s)
    if diagnosis is not None and diagnosis.kind in case.OWN_ERRORS:
        said = {JobRank(fact.rank): fact for fact in diagnosis.facts}  # it is dying, and its status not known yet
        return fault(
            now_s, {rank: _dying(job.cause(rank), said.get(rank)) for rank in map(JobRank, diagnosis.culprits)}
        )
    return phase, ()  # the news of a loss may still be on its way


def overdue(phase: Suspecting, event: Expired, job: Job, now_s: float) -> Next:
    """The time for answers is over: those that are missing are asked for again, waited for, or done without."""
    watch, membership = job.case.watch, job.policy.membership
    asked_s = watch.asked_s if watch.asked_s is not None else phase.since_s
    missing = set(case.expected(job)) - watch.answered
    silent = [place for place in job.world.places if job.world.nodes.holders.get(place) in missing]
    heard_s = min(
        (job.world.nodes.by_place[place].heard_s for place in silent if place in job.world.nodes.by_place),
        default=asked_s,
    )
    quiet = now_s - heard_s > _QUIET_HEARTBEATS * membership.heartbeat_s
    if missing and quiet and now_s - asked_s < membership.dead_s:
        return replace(phase, until_s=now_s + membership.heartbeat_s), ()
    if missing and watch.asked < _QUESTIONS:  # the question or the answer was lost
        return replace(phase, until_s=now_s + ANSWER_S), (do(case.probe, watch.hang),)
    return judge(phase, event, job, now_s)


def judge(_phase: Suspecting, _event: Answered | Expired, job: Job, now_s: float) -> Next:
    """All that can be known of a hang is known."""
    ended = job.ended()
    if ended:
        return fault(now_s, ended)
    watch, hang = job.case.watch, job.case.watch.hang
    diagnosis = watch.diagnosis(job.world.ranks, now_s)
    certain = diagnosis is not None and diagnosis.proven and bool(_named(diagnosis)) and not watch.got_on()
    if hang is None or (hang.early and not certain):
        return Running(now_s), (do(case.withdraw, glanced=True),)
    excuse = watch.excuse(diagnosis)
    if excuse is not None:
        place, activity = excuse
        text = f"no step for {hang.silent_s:.1f} s: it is the {activity.value}"
        known = do(case.announce, NodeRank(place), activity, hang.since_s)
        return Running(now_s), (known, do(case.withdraw, glanced=True, note=text))
    if watch.got_on():
        return Running(now_s), (do(case.withdraw, glanced=True),)
    if diagnosis is not None and not diagnosis.proven:
        return _doubt(diagnosis, job, now_s)
    return _alarm(diagnosis, job, now_s)


def _doubt(diagnosis: Diagnosis, job: Job, now_s: float) -> Next:
    """Whoever may be at work is reported at once, and is waited for."""
    watch, hang = job.case.watch, job.case.watch.hang
    new = watch.doubt is None or hang is None or watch.doubt.since_s != hang.since_s
    again = do(case.doubt, job.case.faults + 1)
    if not watch.patient(now_s):
        return _alarm(diagnosis, job, now_s, again)
    reported = (do(case.report_once),) if new else ()
    return Running(now_s), (again, *reported, do(case.withdraw))


def _alarm(diagnosis: Diagnosis | None, job: Job, now_s: float, *before: Effect) -> Next:
    """Somebody has to be replaced. If all are named, nobody is left to give the state: somebody has paused the job."""
    named = _named(diagnosis) if diagnosis is not None else ()
    alarms = job.case.watch.next_alarm()
    spares_somebody = alarms > len(AGAIN_S) or not set(job.world.ranks) <= set(named)
    counted = (*before, do(case.count_alarm))
    if job.policy.recover_hangs and diagnosis is not None and spares_somebody:
        return _accuse(diagnosis, job, now_s, counted)
    return Running(now_s), (*counted, do(case.report_once), do(case.withdraw))


def _accuse(diagnosis: Diagnosis, job: Job, now_s: float, before: Collection[Effect] = ()) -> Next:
    """Whoever the diagnosis names is replaced; if it names nobody, every process may go on."""
    cause = Cause(CauseKind.DIAGNOSED, diagnosis.kind.value, detail=diagnosis.kind.name)
    causes = {rank: cause for rank in _named(diagnosis) if rank in job.world.ranks}
    replaced = do(case.replace_culprits, tuple(causes), proven=diagnosis.proven)
    causes = causes or {JobRank(min(diagnosis.victims or job.world.ranks)): cause}
    told = () if diagnosis.proven else (do(note, Note("no restart is spent: the hang is not proven")),)
    return fault(now_s, causes, free=not diagnosis.proven, before=(*before, *told, replaced))


def _dying(cause: Cause, said: Finding | None) -> Cause:
    """What a rank says of itself, as long as its end is not known."""
    if cause.kind is not CauseKind.UNKNOWN or said is None:
        return cause
    return Cause(CauseKind.DIAGNOSED, said.text, detail=said.kind.name)


def _named(diagnosis: Diagnosis) -> tuple[JobRank, ...]:
    """Who is to be replaced. That a node is silent is no reason: whether it is lost, its heartbeats tell."""
    return () if diagnosis.kind is Kind.SILENT else tuple(map(JobRank, diagnosis.culprits))
