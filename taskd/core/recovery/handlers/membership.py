"""Nodes that come and go: lost ones, those that leave, those that wait for a place, and those that are drained."""

from dataclasses import replace

from taskd.core.policy import Strategy
from taskd.core.recovery import nodes
from taskd.core.recovery.actions import Next, do
from taskd.core.recovery.attempts import blame, choose_again, rearrange
from taskd.core.recovery.budget import EARLY_S
from taskd.core.recovery.case import report_lost_node
from taskd.core.recovery.causes import Cause, CauseKind
from taskd.core.recovery.events import Candidate, Drained, Isolated, NodeLeaves, NodeLost, Overtaken
from taskd.core.recovery.handlers.common import end, fault, give_up
from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import send
from taskd.core.recovery.phases import (
    AnyPhase,
    AwaitingQuorum,
    Choosing,
    Forming,
    Pausing,
    Rearranging,
    Restarting,
    Running,
)
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Order


def lose_node(phase: AnyPhase, event: NodeLost, job: Job, now_s: float) -> Next:
    """Every rank of a node is lost with it."""
    place, world = event.place, job.world
    text = event.text or f"node {place} is lost: its agent is not heard any more"
    ranks = world.on_node(place)
    if all(world.ranks[rank].exited for rank in ranks):
        return phase, ()
    if not job.has_quorum(now_s):
        return phase, () if place in job.absence.held else (do(nodes.hold_back, place, text),)
    causes = dict.fromkeys(ranks, Cause(CauseKind.NODE, text))
    reported = do(report_lost_node, ranks, text)
    let_go = do(nodes.let_go, place)
    if job.incident is None:
        choosing, begun = fault(now_s, causes, before=(let_go,))
        return choosing, (*begun, reported)
    return Choosing(now_s), (let_go, do(blame, causes), do(choose_again), reported)


def leave_node(phase: AnyPhase, event: NodeLeaves, job: Job, now_s: float) -> Next:
    """torchrun has ended on a node: if its work was not done, the node is lost, and with the last one the job."""
    place, world = event.place, job.world
    if _has_done_its_work(job, place):
        return phase, ()
    text = f"torchrun has ended on node {place}"
    if not set(world.places) - world.nodes.dead_nodes - {place}:
        return give_up(now_s, text)
    return phase, (do(nodes.mark_dead, place, text),)


def leave_forming(phase: Forming, event: NodeLeaves, job: Job, now_s: float) -> Next:
    """torchrun has ended on a node of a job that is not there yet. Of an earlier manager's job, the others go on."""
    if _has_done_its_work(job, event.place):
        if all(view.status.leaving for view in job.world.nodes.by_place.values()):
            return end(now_s, "every node that came has done its work, and others never came", 0)
        return phase, ()
    if job.world.nodes.by_place[event.place].status.ledger.term > 0:
        return phase, (do(nodes.mark_dead, event.place, ""),)
    return end(now_s, f"torchrun has ended on node {event.place}")


def _has_done_its_work(job: Job, place: NodeRank) -> bool:
    ranks = job.world.on_node(place)
    return bool(ranks) and all(job.world.ranks[rank].exited for rank in ranks)


def isolated(_phase: AnyPhase, event: Isolated, _job: Job, now_s: float) -> Next:
    """It is not for this manager to go on without so many."""
    return end(now_s, event.reason)


def welcome(phase: Pausing | Rearranging | Restarting, _event: Candidate, job: Job, now_s: float) -> Next:
    """A node waits for a place, and one is vacant."""
    record = job.under_way.record
    if job.absence.held or record.decision.strategy is not Strategy.RECOVER or not job.has_quorum(now_s):
        return phase, ()
    if not any(job.world.nodes.candidate_for(place) is not None for place in job.world.vacant):
        return phase, (do(nodes.fill),)
    if isinstance(phase, Restarting):
        return replace(phase, since_s=now_s), (do(nodes.fill), do(send, Order.RUN, meeting=phase.meeting))
    since = replace(phase, since_s=now_s) if isinstance(phase, Pausing) else Pausing(now_s, drained=phase.drained)
    return since, (do(nodes.fill), do(send, Order.PAUSE))


def decide(phase: AwaitingQuorum, _event: Candidate, job: Job, now_s: float) -> Next:
    """Perhaps enough nodes are heard now to choose what is done."""
    if job.absence.held or not job.has_quorum(now_s):
        return phase, ()
    return Choosing(now_s), (do(choose_again),)


def grow(phase: Running, _event: Candidate, job: Job, now_s: float) -> Next:
    """A node waits for a place, and one is absent from the world: at full size again.

    If they cannot be paused, all start anew: torchrun does no better when a node comes.
    """
    world = job.world
    absent = sorted(set(map(NodeRank, range(job.policy.node_count))) - set(world.places))
    if not absent:
        return phase, ()
    anew = not world.all_cooperate()
    if anew and (now_s - max(view.since_s for view in world.ranks.values()) < EARLY_S or not job.has_quorum(now_s)):
        return phase, ()  # they may be on their way into a resilient function; the node is heard again
    count = min(len(absent), sum(not status.leaving for status in world.nodes.usable()))
    if not count:
        return phase, ()
    grown = absent[:count]
    text = f"node {', '.join(map(str, grown))} has come (back)"
    begun = (do(nodes.come_back, grown), do(rearrange, Strategy.ELASTIC_TRAINING, text, {}, restart=anew))
    if anew:
        return Choosing(now_s), begun
    return Rearranging(now_s), (*begun, do(send, Order.PAUSE, reason=text, at_commit=True))


def drain(_phase: Running, event: Drained, job: Job, now_s: float) -> Next:
    """Move the ranks of a living node to one that waits: an operator wants it so, or the node is slow."""
    causes = dict.fromkeys(job.world.on_node(event.place), Cause(CauseKind.NODE, event.reason))
    return Rearranging(now_s, drained=event.place), (
        do(rearrange, Strategy.RECOVER, event.reason, causes),
        do(send, Order.PAUSE, reason=event.reason, at_commit=True),
    )


def follow(_phase: AnyPhase, _event: Overtaken, _job: Job, now_s: float) -> Next:
    """The agents know a newer world than this manager."""
    return Running(now_s), (do(nodes.follow), do(send, Order.RUN))
