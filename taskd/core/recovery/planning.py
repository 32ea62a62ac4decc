"""Plan of the next world, and milestones on the way to it."""

from collections.abc import Mapping

from msgspec.structs import replace

from taskd.core.membership import quorum
from taskd.core.policy import Strategy
from taskd.core.recovery.actions import Note
from taskd.core.recovery.events import Echoed
from taskd.core.recovery.job import Job
from taskd.core.recovery.orders import send
from taskd.core.recovery.ranks import Restore, plan_restore
from taskd.core.recovery.record import Resumption
from taskd.core.recovery.world import World, replica_sets
from taskd.core.rendezvous import NOWHERE, Rendezvous
from taskd.wire.kinds import NOBODY, JobRank, WorldRank
from taskd.wire.messages import Condition, NodeStatus, Order, RankStatus, WorldPlan
from taskd.wire.state import Load, Transfer
from taskd.wire.text import line


def mark(job: Job, now_s: float, milestone: str) -> None:
    """Record the time at which all ranks reached a milestone."""
    setattr(job.under_way.record.milestones, milestone, now_s)


def note(job: Job, _now_s: float, text: Note) -> None:
    """Send a note to the operator."""
    job.out.append(text)


def announced(job: Job, now_s: float) -> Echoed:
    """Record the agents that know the next world, which the order to pause has announced."""
    known = quorum.echoes(job.world.nodes, job.orders.term, job.world.generation, now_s, job.policy.membership)
    job.under_way.echoes = {status.agent_id for status in known}
    return Echoed()


def echoes(job: Job, status: NodeStatus) -> bool:
    """Record a report, and return whether enough nodes may know the next world now.

    This is a fast first check. The full check (`quorum.is_known`) takes longer.
    """
    known, most = job.under_way.echoes, len(job.world.nodes.agreed)
    few = 2 * len(known) < most  # else no more names are needed
    if few and status.ledger.term == job.orders.term and status.generation >= job.world.generation:
        known.add(status.agent_id)
    return 2 * len(known) >= most


def plan_of(job: Job) -> Restore | None:
    """Plan the step at which all ranks resume, and the transfers of state; None if there is no way."""
    held = {rank: view.status for rank, view in job.world.ranks.items() if view.status is not None}
    for rank in {status.distrusts for status in held.values() if status.distrusts != NOBODY} & held.keys():
        held[rank] = replace(held[rank], condition=Condition.TORN, copies=())
    sets = replica_sets(job.world)
    return _plan_of_verified(job, held, sets) or _plan_behind(job, held, sets) or plan_restore(held, sets)


def _plan_behind(job: Job, held: Mapping[JobRank, RankStatus], sets: Mapping[JobRank, str | None]) -> Restore | None:
    """Plan the recovery from a fault after the training function had returned.

    The function is called again at an earlier step, at which its loop still runs. Returns None if the fault is another
    one, if a process has a state, or if no copy of an earlier step is known.
    """
    last = max(job.step, job.under_way.record.step)
    if not job.under_way.over or any(status.condition is not Condition.EMPTY for status in held.values()):
        return None
    earlier = {
        rank: replace(status, copies=tuple(copy for copy in status.copies if copy.step < last), saved=-1)
        for rank, status in held.items()
    }
    return plan_restore(earlier, sets)


def _plan_of_verified(
    job: Job, held: Mapping[JobRank, RankStatus], sets: Mapping[JobRank, str | None]
) -> Restore | None:
    """Plan the return to copies of a step at which the states of all replicas were equal.

    Returns None if the fault does not require it, or if there are no such copies.
    """
    newest = job.under_way.verified
    if newest < 0:
        return None
    verified = {
        rank: replace(
            status,
            condition=Condition.TORN,
            copies=tuple(copy for copy in status.copies if copy.step <= newest),
            saved=status.saved if status.saved <= newest else -1,
        )
        for rank, status in held.items()
    }
    return plan_restore(verified, sets)


def store_host(world: World) -> NodeStatus:
    """Return the node whose agent serves the next world's store: the first living one of the world."""
    return world.nodes.by_place[min(place for place in world.places if place not in world.nodes.dead_nodes)].status


def meeting_of(world: World) -> Rendezvous:
    """Return the store at which the processes of a restarted world meet; `NOWHERE` if no node lives."""
    if set(world.places) <= world.nodes.dead_nodes:
        return NOWHERE
    host = store_host(world)
    return Rendezvous(host.store_host, host.store_port, host.store_key)


def plan_world(job: Job, now_s: float, restore: Restore) -> None:
    """Plan the next world, and order all ranks to build it."""
    record, policy = job.under_way.record, job.policy
    host, members = store_host(job.world), job.world.members
    at = {rank: WorldRank(index) for index, rank in enumerate(members)}
    record.milestones.planned_s = now_s
    redone = record.resumption.redone
    if job.under_way.verified >= 0 and not (restore.loads or restore.saved):
        text = f"no copies of a step up to {job.under_way.verified} are left: whatever has come of it stays"
        job.out.append(Note(f"silent data corruption: {text}", warns=True))
    if restore.loads and job.under_way.over:
        text = f"the training function had returned, and is called again at step {restore.target_step}"
        more = "values that it collects outside of the TrainState are collected from that step on"
        job.out.append(Note(f"{text}: {more}", warns=True))
    if restore.loads or restore.saved:  # ranks that have gone further go back
        redone = max(redone, max(record.step, job.step) - restore.target_step)
        job.step = restore.target_step
    record.resumption = Resumption(restore.target_step, redone)
    dumps = record.decision.strategy is Strategy.DUMP
    plan = WorldPlan(
        generation=job.world.generation,
        world_size=len(members),
        store_host=host.store_host,
        store_port=host.store_port,
        store_key=host.store_key,
        target_step=restore.target_step,
        adopt=tuple(at[rank] for rank in restore.adopt),
        transfers=tuple(
            Transfer(donor=at[transfer.donor], receivers=tuple(at[rank] for rank in transfer.receivers))
            for transfer in restore.transfers
        ),
        loads=tuple(Load(receiver=at[load.receiver], holder=at[load.holder], of=load.of) for load in restore.loads),
        copied=restore.copied,
        saved=restore.saved,
        timeout_s=policy.deadlines.join_s,
        members=() if members == tuple(range(len(members))) else members,
        replicas=policy.world_size,
        dump=line(record.reason) if dumps else "",  # a text makes the plan a dump
        dump_to=policy.strategies.dump_to if dumps else b"",
    )
    send(job, now_s, Order.JOIN, plan)
