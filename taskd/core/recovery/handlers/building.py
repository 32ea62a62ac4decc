"""While another world is built: ranks pause, new processes come, a plan goes out, and one more step is committed.

Rules:

1. Every phase has a deadline. A rank that misses that of a pause is fenced; a world that misses its own is tried anew.
2. Success is recorded only after every rank has committed one more step (or has none left).
3. A warm process that fails in its set-up is followed by a cold one, in the same attempt (`warmth.py`).
4. A loss joins the failing set. What is lost within `merge_s` of a loss that has cost a restart costs none of its own.
"""

from dataclasses import replace
from typing import Final

from taskd.core.diagnosis.findings import names
from taskd.core.diagnosis.watch import ANSWER_S
from taskd.core.membership.quorum import is_known
from taskd.core.recovery import attempts, case, set_up
from taskd.core.recovery.actions import Effect, Next, Note, do
from taskd.core.recovery.causes import Cause, CauseKind
from taskd.core.recovery.events import (
    DUMPED,
    JOINED,
    RESTORED,
    RESUMED,
    Committed,
    Dumped,
    Echoed,
    Exited,
    Expired,
    Finished,
    Joined,
    Lost,
    Paused,
    Restored,
)
from taskd.core.recovery.handlers.common import end, give_up
from taskd.core.recovery.handlers.resuming import begin_step, look
from taskd.core.recovery.job import Job
from taskd.core.recovery.nodes import move
from taskd.core.recovery.orders import send
from taskd.core.recovery.phases import (
    Announcing,
    AwaitingQuorum,
    Building,
    Choosing,
    Joining,
    Pausing,
    Phase,
    Rearranging,
    Restarting,
    Resuming,
    Running,
)
from taskd.core.recovery.planning import announced, mark, note, plan_of, plan_world
from taskd.core.recovery.record import tell
from taskd.core.recovery.reprieve import reprieve
from taskd.core.recovery.situation import refused
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Order, Stage

LOOK_AGAIN_S: Final = 2.0
"""What a rank does that is waited for is asked so often."""


# ---- losses


def lose_more(phase: Building | Restarting, event: Lost | Exited, job: Job, now_s: float) -> Next:
    """A process ended while a recovery runs: it joins the failing set."""
    rank, record = event.rank, job.under_way.record
    fatal, cause = job.fatal(rank), job.cause(rank)
    if fatal:
        return give_up(now_s, fatal)
    restarts = isinstance(phase, Restarting)
    early = not restarts or job.failed_to_start(rank, now_s)  # who starts with all others may wait for them in vain
    learned = (do(set_up.learn, rank),) if early else ()
    if early and set_up.only_too_warm(job, rank):
        again = do(attempts.choose_again) if restarts else do(attempts.start_cold)
        return Choosing(now_s), (*learned, do(set_up.tell_setback, rank), again)
    merged = attempts.merges(job, rank, now_s)
    blamed = do(attempts.blame, {rank: cause})
    new = job.world.ranks[rank].joins
    who = f"rank {rank}'s new process" if new or record.decision.restart else f"rank {rank}"
    if _ends_by_itself(phase, rank, job):
        failed = do(attempts.fail, f"{who}: {cause.text}", at_once=True)
        return Choosing(now_s), (*learned, blamed, failed, do(attempts.choose_again))
    setback = f"{who}: {cause.text}" if restarts or new else ""
    charge = () if merged else (rank,)
    pauses = isinstance(phase, Pausing | Rearranging | Announcing)
    return Choosing(now_s), (
        *learned,
        blamed,
        *((do(attempts.merge, rank),) if merged else ()),
        do(attempts.choose_again, charge=charge, setback=setback, new_world=not pauses),
    )


def lose_meanwhile(phase: AwaitingQuorum, event: Lost | Exited, job: Job, now_s: float) -> Next:
    """It is one fault with that for which nodes are waited for."""
    fatal = job.fatal(event.rank)
    if fatal:
        return give_up(now_s, fatal)
    return phase, (do(set_up.learn, event.rank), do(attempts.blame, {event.rank: job.cause(event.rank)}))


def _ends_by_itself(phase: Building | Restarting, rank: JobRank, job: Job) -> bool:
    """The script cannot go on in the world that is being built, though nobody outside has harmed that world."""
    survivor = phase.kind not in (Phase.JOINING, Phase.RESUMING) and not job.world.ranks[rank].joins
    return not isinstance(phase, Restarting) and not survivor and job.ended_by_themselves()


# ---- the pause


def pausing(phase: AwaitingQuorum | Rearranging | Pausing, event: Paused, job: Job, now_s: float) -> Next:
    """One more rank waits for a plan; when all do, make it."""
    record, marks = job.under_way.record, []
    if isinstance(phase, Rearranging) and phase.first_out_s is None and not job.world.ranks[event.rank].joins:
        phase = replace(phase, first_out_s=now_s)
    survivors = job.world.all_paused(newcomers=False)
    if record.milestones.paused_s is None and survivors:
        marks.append(do(mark, "paused_s"))
    if not survivors and record.milestones.replaced_s is not None:
        return phase, ()
    newcomers = job.world.all_paused(newcomers=True)
    if record.milestones.replaced_s is None and newcomers:
        marks.append(do(mark, "replaced_s"))
    if not (survivors and newcomers):
        return phase, tuple(marks)
    drained = phase.drained if not isinstance(phase, AwaitingQuorum) else None
    if drained is None:
        return Announcing(now_s), (*marks, do(announced))
    agent_id = job.world.nodes.candidate_for(drained)
    if agent_id is None:
        text = f"node {drained} is not drained: no node waits for its place any more"
        return Announcing(now_s), (*marks, do(note, Note(text)), do(announced))
    moved = (do(move, drained, agent_id), do(send, Order.PAUSE, reason=record.decision.reason))
    return Pausing(phase.since_s), (*marks, *moved)


def hurry(phase: Rearranging, _event: Expired, job: Job, _now_s: float) -> Next:
    """Nothing has failed, and a step was waited for: free those that cannot come to its end any more."""
    pausing = Pausing(phase.since_s, drained=phase.drained)
    if job.world.all_paused(newcomers=False):
        return pausing, ()
    return pausing, (do(send, Order.PAUSE, reason=job.under_way.record.decision.reason),)


def plan(phase: Announcing, _event: Echoed | Paused, job: Job, now_s: float) -> Next:
    """Every rank has paused: have them build the next world, as soon as enough nodes know of it.

    Not one to which a node belongs that is lost, about which too few are heard to decide.
    """
    if job.absence.held or not is_known(
        job.world.nodes, job.orders.term, job.world.generation, now_s, job.policy.membership
    ):
        return phase, ()
    if not job.under_way.unique:
        return Choosing(now_s), (do(attempts.renumber),)
    restore = plan_of(job)
    if restore is None or refused(job.world):
        return Choosing(now_s), (do(attempts.choose_again, no_donor=restore is None),)
    return Joining(now_s, now_s + job.policy.deadlines.join_s), (do(plan_world, restore),)


def fence_late(phase: Pausing, _event: Expired, job: Job, now_s: float) -> Next:
    """Ranks that did not come out, or did not come up, in time are replaced."""
    late = job.late(phase, now_s)
    if any(job.world.ranks[rank].node_rank in job.world.nodes.dead_nodes for rank in late):
        return no_node_came(phase, job, now_s)
    new = [rank for rank in late if job.world.ranks[rank].joins]
    old = [rank for rank in late if rank not in new]
    notes: tuple[Effect, ...] = ()
    if old:
        if phase.probed_s is None:
            return replace(phase, probed_s=now_s), (do(case.ask, None), do(send, Order.PAUSE))
        if now_s - phase.probed_s < ANSWER_S and not case.all_answered(job):
            return phase, ()
        phase, notes = _spare(phase, old, job, now_s)
        old = [rank for rank in old if phase.spared.get(rank, 0.0) <= now_s]
    return _fence(phase, old, new, notes, job, now_s)


def _fence(
    phase: Pausing, old: list[JobRank], new: list[JobRank], before: tuple[Effect, ...], job: Job, now_s: float
) -> Next:
    if not old and not new:
        return phase, before
    if new:
        limit_s, usual_s = job.newcomer_s(), job.setup_s
        usual = f", for which the first processes needed {usual_s:.1f} s" if usual_s is not None else ""
        text = f"{names(new)} did not reach the resilient function within {limit_s:g} s{usual}"
        before = (*before, do(attempts.fail, text, at_once=True))
    causes = dict.fromkeys(old, _late("pause"))
    causes |= dict.fromkeys(new, _late("reach the resilient function"))
    return Choosing(now_s), (
        *before,
        do(attempts.fence, causes),
        do(attempts.choose_again, charge=tuple(old), new_world=False),
    )


def _late(what: str) -> Cause:
    return Cause(CauseKind.FENCED, f"it did not {what} in time and was fenced", detail=what)


def _spare(phase: Pausing, old: list[JobRank], job: Job, now_s: float) -> tuple[Pausing, tuple[Effect, ...]]:
    """Which of the late ones have a reason, and how long they are waited for."""
    evidence, ranks, limits = job.case.watch.evidence(now_s), job.world.ranks, job.policy.deadlines
    last = not any(view.at(job.world.generation) is Stage.PAUSED and not view.empty for view in ranks.values())
    spared, notes = dict(phase.spared), []
    for rank in old:
        until_s = ranks[rank].since_s + limits.pause_limit_s
        why = reprieve(evidence.get(rank), last=last)
        if not why or now_s >= until_s:
            continue
        if rank not in spared:
            text = f"rank {rank} has not paused in {now_s - ranks[rank].since_s:.0f} s, and is waited for: {why}"
            limit = f"(at most {limits.pause_limit_s:g} s, TASKD_PAUSE_LIMIT_S)"
            notes.append(do(note, Note(f"{text} {limit}", warns=True)))
        spared[rank] = min(now_s + LOOK_AGAIN_S, until_s)
    return replace(phase, probed_s=None, spared=spared), tuple(notes)


def no_node_came(phase: Pausing | Restarting, job: Job, now_s: float) -> Next:
    """A place is vacant, and stays so."""
    if job.absence.held or not job.has_quorum(now_s):
        return phase, ()  # it is not for this manager to say that nobody comes
    return Choosing(now_s), (do(attempts.give_up_waiting), do(attempts.choose_again))


# ---- the new world


def advance(
    phase: Joining | Resuming, _event: Joined | Restored | Committed | Finished, job: Job, now_s: float
) -> Next:
    """A rank got further in building the world."""
    record, marks = job.under_way.record, []
    if record.milestones.joined_s is None:
        if not job.world.all_at(JOINED):
            return phase, ()
        marks.append(do(mark, "joined_s"))
    if isinstance(phase, Joining) and job.world.all_at(RESTORED):
        marks.append(do(mark, "restored_s"))
        phase = begin_step(job, now_s)
    if isinstance(phase, Resuming) and job.world.all_at(RESUMED):
        return Running(now_s), (*marks, do(attempts.succeed))
    return phase, tuple(marks)


def stray(phase: Joining | Resuming, _event: Paused, job: Job, now_s: float) -> Next:
    """A rank came out of the new world: what follows within a moment explains it."""
    if phase.strayed:
        return phase, ()
    return replace(phase, until_s=now_s + job.policy.deadlines.confirm_s, strayed=True), ()


def fail_world(phase: Joining | Resuming, _event: Expired, job: Job, now_s: float) -> Next:
    """The world could not be built, and nobody is known to be lost: try another."""
    if isinstance(phase, Resuming) and now_s < phase.until_s:
        return look(phase, job, now_s)
    causes = {rank: job.cause(rank) for rank in job.world.at_stage(Stage.PAUSED)}
    own, cut_off = (
        {rank: cause for rank, cause in causes.items() if cause.kind is kind}
        for kind in (CauseKind.CAME_OUT, CauseKind.CUT_OFF)
    )
    limit = "the world was not built, or committed no step, in time"
    text = "; ".join(filter(None, map(tell, (own, cut_off)))) or limit
    return Choosing(now_s), (do(attempts.fail, text), do(attempts.choose_again))


def dumped(phase: Joining | Resuming, event: Dumped, job: Job, now_s: float) -> Next:
    """When every rank has written its part, the checkpoint is complete."""
    if not job.world.all_at(DUMPED):
        return advance(phase, Restored(event.rank), job, now_s)
    record = job.under_way.record
    return end(now_s, f"{record.reason}; a checkpoint of step {record.target_step} was written")
