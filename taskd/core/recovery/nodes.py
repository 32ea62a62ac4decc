"""Effects that give places to nodes and take places from them.

A vacant place is given to a node that waits. If none waits, the cluster is asked for one.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from taskd.core.recovery.actions import AskCluster, Note
from taskd.core.recovery.events import Exited, NodeLost
from taskd.core.recovery.pace import forget_paces
from taskd.core.recovery.record import tell
from taskd.core.recovery.world import World
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Stage

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job


def fill(job: "Job", now_s: float) -> None:
    """Give vacant places to nodes that wait for one, and ask the cluster for the others."""
    if not job.has_quorum(now_s):
        return
    incident = job.under_way
    for place in job.world.vacant:
        agent_id = job.world.nodes.candidate_for(place)
        if agent_id is not None:
            give(job, now_s, place, agent_id)
        elif place not in incident.asked_s:
            incident.asked_s[place] = now_s
            job.world.nodes.wanted.add(place)
            job.out.append(AskCluster(place, tell(incident.record.causes)))


def give(job: "Job", now_s: float, place: NodeRank, agent_id: str) -> None:
    """Give a place to another node and restart its ranks there."""
    host = job.world.nodes.candidates[agent_id].status.host or agent_id
    job.world.nodes.assign(place, agent_id)
    joins = job.record is None or not job.record.decision.restart
    for rank in job.world.on_node(place):
        job.world.replace(rank, now_s, joins=joins, moved=joins)
    job.out.append(Note(f"node {place} is now {host}"))


def exclude(world: World, place: NodeRank) -> None:
    """Take a place from its node, which gets no place any more."""
    world.nodes.excluded.add(world.nodes.holders[place])
    world.nodes.dead_nodes.add(place)
    world.nodes.demote(place)
    world.nodes.vacated.add(place)


def move(job: "Job", now_s: float, place: NodeRank, agent_id: str) -> None:
    """Give the place of a drained node to another node."""
    job.world.nodes.excluded.add(job.world.nodes.holders[place])
    give(job, now_s, place, agent_id)
    job.under_way.record.milestones.replaced_s = None


def come_back(job: "Job", now_s: float, places: Collection[NodeRank]) -> None:
    """Give places that were absent from the world to nodes that wait for them."""
    for place in places:
        agent_id = job.world.nodes.candidate_for(place)
        if agent_id is not None:
            job.world.expect(place, job.policy.ranks_per_node, now_s)
            give(job, now_s, place, agent_id)


def mark_dead(job: "Job", _now_s: float, place: NodeRank, text: str) -> NodeLost | None:
    """Mark a node as gone. With a `text`, return the event that the job has lost it."""
    job.world.nodes.dead_nodes.add(place)
    return NodeLost(place, text) if text else None


def count_as_exited(job: "Job", _now_s: float, place: NodeRank) -> Exited | None:
    """Mark the ranks of a stopped node as exited, because the node's last report is missing."""
    left = [rank for rank in job.world.on_node(place) if not job.world.ranks[rank].gone]
    for rank in left:
        view = job.world.ranks[rank]
        if view.status is not None:
            view.note(msgspec.structs.replace(view.status, stage=Stage.EXITED))
    return Exited(left[-1]) if left else None


def hold_back(job: "Job", _now_s: float, place: NodeRank, text: str) -> None:
    """Postpone the recovery from a lost node, because too few nodes report."""
    job.absence.held.add(place)
    job.out.append(Note(f"{text}; too few nodes are heard to go on without it: waiting for more"))


def let_go(job: "Job", _now_s: float, place: NodeRank) -> None:
    """Give up a lost node, which is no longer held back."""
    job.absence.held.discard(place)


def follow(job: "Job", now_s: float) -> None:
    """Adopt the newer world that the agents carry."""
    job.incident = None
    forget_paces(job.pace)
    for node in job.world.nodes.by_place.values():
        job.world.admit(node.status, now_s)
    ledger = job.world.nodes.newest_ledger()
    if ledger.term != job.orders.term:
        job.world.nodes.trust(ledger)
    job.out.append(Note(f"the agents carry generation {job.world.generation}: the manager follows"))
