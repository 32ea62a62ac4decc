"""All processes start anew, or have finished and were let go; and the end.

From RELEASE on, nobody knows who is still inside the resilient function. A loss then waits until all others are inside
again or have ended, for a moment (`confirm_s`); what fails by itself has done so in the script's own code, where nobody
can be kept, and is acted on at once.
"""

from dataclasses import replace

from taskd.core.membership.places import has_stopped
from taskd.core.recovery import nodes
from taskd.core.recovery.actions import Next, do
from taskd.core.recovery.attempts import succeed
from taskd.core.recovery.causes import CauseKind
from taskd.core.recovery.events import (
    UP,
    Committed,
    Exited,
    Expired,
    Finished,
    Lost,
    NodeLost,
    OfRank,
    Overtaken,
    Paused,
    Started,
)
from taskd.core.recovery.handlers import membership
from taskd.core.recovery.handlers.building import no_node_came
from taskd.core.recovery.handlers.common import end, fault
from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import send
from taskd.core.recovery.phases import Finishing, Restarting, Running, Stopped
from taskd.core.recovery.takeover import stop_again
from taskd.wire.messages import Order, Stage


def restarted(phase: Restarting, _event: OfRank, job: Job, now_s: float) -> Next:
    """One more process of a full restart runs."""
    return (Running(now_s), (do(succeed),)) if job.world.all_at(UP) else (phase, ())


def stop_late(phase: Restarting, _event: Expired, job: Job, now_s: float) -> Next:
    """Not even a full restart came up."""
    if job.world.vacant:
        return no_node_came(phase, job, now_s)
    return end(now_s, "the restarted processes did not come up in time")


# ---- after RELEASE


def lose_outside(phase: Finishing, event: Lost, job: Job, now_s: float) -> Next:
    """A process ended after all had finished: recover when the others can take part again, or soon."""
    if job.cause(event.rank).kind is CauseKind.EXITED or job.settled():
        return fault(now_s, job.ended())
    until_s = now_s + job.policy.deadlines.confirm_s
    return replace(phase, until_s=min(phase.until_s or until_s, until_s)), ()


def reopen(phase: Finishing, _event: Started | Committed | Finished, job: Job, now_s: float) -> Next:
    """The script has called another resilient function; when every rank is inside, the job trains again."""
    if not job.world.outside():
        return Running(now_s), (do(send, Order.RUN),)
    if phase.until_s is not None and job.settled():
        return fault(now_s, job.ended())
    return phase, ()


def stray_outside(phase: Finishing, event: Paused, job: Job, now_s: float) -> Next:
    """A rank came out of its next resilient function before all others had entered theirs."""
    waits = replace(phase, until_s=phase.until_s or now_s + job.policy.deadlines.replace_s)
    return reopen(waits, Started(event.rank), job, now_s)


def unsettled(_phase: Finishing, _event: Expired, job: Job, now_s: float) -> Next:
    """After RELEASE somebody is lost, and somebody else has not come back in time."""
    return fault(now_s, job.ended() or {rank: job.cause(rank) for rank in job.world.at_stage(Stage.PAUSED)})


def leave(phase: Finishing, _event: Exited, job: Job, now_s: float) -> Next:
    """A process ended with status 0; the job is done when all have."""
    if len(job.world.exited()) == len(job.world.ranks):
        return end(now_s, f"every rank exited with status 0{_missing_reports(job)}", 0)
    if phase.until_s is not None and job.settled():
        return fault(now_s, job.ended())
    return phase, ()


def lose_node(phase: Finishing, event: NodeLost, job: Job, now_s: float) -> Next:
    """A node is lost after all ranks had finished: no fault if it had announced its stop and reported no death."""
    known, ranks = job.world.nodes.by_place[event.place].status, job.world.on_node(event.place)
    if known.leaving and not has_stopped(known) and all(job.world.ranks[rank].done for rank in ranks):
        return phase, (do(nodes.count_as_exited, event.place),)
    return membership.lose_node(phase, event, job, now_s)


def _missing_reports(job: Job) -> str:
    """Name the nodes whose ranks count as exited without a report of it (`lose_node`)."""
    nodes_of = sorted((place, node.status) for place, node in job.world.nodes.by_place.items())
    silent = [place for place, status in nodes_of if any(rank.stage is not Stage.EXITED for rank in status.ranks)]
    names = ", ".join(map(str, silent))
    return f", as far as is known: node {names} was stopped, and its last report is missing" if silent else ""


def end_again(phase: Stopped, event: Overtaken, _job: Job, _now_s: float) -> Next:
    """The end of the job must be newer than all that an agent knows."""
    return phase, (do(stop_again, event.place),)
