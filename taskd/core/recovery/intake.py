"""From what agents report to events.

Rules:

1. A rank's report counts only if it is of the wanted process (incarnation), and, but for its death, of the current
   generation. All else is news of a world that is gone.
2. Whatever was heard while a phase could do nothing with it is looked at again when the job runs.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskd.core.membership.places import age, has_stopped
from taskd.core.membership.quorum import has_quorum
from taskd.core.recovery.actions import Note
from taskd.core.recovery.budget import Budget
from taskd.core.recovery.causes import of_report
from taskd.core.recovery.events import EVENT_OF_STAGE, JOINED, Formed, Isolated, NodeLeaves, NodeLost, Overtaken
from taskd.core.recovery.job import Job
from taskd.core.recovery.phases import HALTED, Forming, Phase
from taskd.core.recovery.world import newest_generation, stage_in
from taskd.errors import TransitionError
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import NodeStatus, RankStatus, Stage

if TYPE_CHECKING:
    from taskd.core.recovery.machine import Recovery

MISSING_S: Final = 10.0


def hear_holder(core: "Recovery", status: NodeStatus, place: NodeRank, now_s: float) -> None:
    """A node of the world has reported."""
    dead = core.world.nodes.dead_nodes
    stops = has_stopped(status)
    if stops and place not in dead and any(rank.stage is not Stage.EXITED for rank in status.ranks):
        core.fire(NodeLeaves(place), now_s)  # before the deaths that it brings look like faults
    newer = newest_generation(status) > core.world.generation or _is_built_elsewhere(core, status)
    if core.phase is not Phase.FORMING and newer:
        core.fire(Overtaken(place), now_s)
    if core.phase is Phase.FORMING:
        _admit(core, status, now_s)
    elif core.phase is not Phase.STOPPED and place not in dead:
        _hear_ranks(core, status, now_s)
    if stops and place not in dead:
        core.fire(NodeLeaves(place), now_s)


def _is_built_elsewhere(core: "Recovery", status: NodeStatus) -> bool:
    """Ranks are in a world for which this manager has given no plan yet: another one has, under the same number."""
    return core.phase in HALTED and any(
        rank.generation == core.world.generation and rank.stage in JOINED for rank in status.ranks
    )


def give_time(job: Job, place: NodeRank, now_s: float) -> None:
    """A node is back: its ranks have as long to pause as the others had."""
    for rank in job.world.on_node(place):
        job.world.ranks[rank].since_s = now_s


def _admit(core: "Recovery", status: NodeStatus, now_s: float) -> None:
    job, policy = core.job, core.job.policy.budget
    job.world.admit(status, now_s)
    if job.budget is None:
        limit = policy.max_restarts
        job.budget = Budget(
            max_restarts=status.max_restarts if limit is None else limit,
            repeats=policy.repeats,
            window_s=policy.window_s,
        )
    job.step = max([job.step, *(rank.step for rank in status.ranks)])
    job.world.asking.update(rank.rank for rank in status.ranks if rank.anew)


def _hear_ranks(core: "Recovery", status: NodeStatus, now_s: float) -> None:
    refused: list[TransitionError] = []
    for rank in status.ranks:
        try:
            _hear_rank(core, rank, now_s)
        except TransitionError as error:  # noqa: PERF203 - costs nothing where nothing is raised
            refused.append(error)
    if refused:
        raise refused[0]


def _hear_rank(core: "Recovery", status: RankStatus, now_s: float) -> None:
    job, world, phase = core.job, core.job.world, core.state.kind
    view = world.ranks.get(status.rank)
    if view is None or status.incarnation < view.incarnation or status == view.status or phase is Phase.STOPPED:
        return
    newer = status.incarnation > view.incarnation
    if view.gone and not newer:  # a second report of the same end only knows its cause better
        if job.record is not None and status.rank in job.record.causes and status.cause:
            job.record.causes[status.rank] = of_report(status)
        return
    stage = stage_in(status, world.generation)
    if phase is Phase.RESTARTING and stage is not Stage.EXITED and (stage is None or status.term != job.orders.term):
        stage = Stage.DEAD  # another manager's order: it waits for others in vain
    event = EVENT_OF_STAGE[stage](status.rank) if stage is not None else None
    row = core.row(event.kind, status.rank) if event is not None else None
    if newer:
        world.adopt(status, now_s)
    if status.stage is Stage.TRAINING and view.starting and not view.joins:
        job.setup_s = max(job.setup_s or 0.0, now_s - view.since_s)
    view.note(status)
    if status.anew:
        job.world.asking.add(status.rank)
    if event is not None:
        job.step = max(job.step, status.step)
        core.fire(event, now_s, row)


# ---- a job that forms


def tell_missing(core: "Recovery", now_s: float) -> None:
    """Tell the operator, once, that torchrun runs on some nodes and others are not heard."""
    phase, known = core.state, core.world.nodes.by_place
    formed = {view.status.node_count for view in known.values()} - {0}
    if not (isinstance(phase, Forming) and formed) or phase.told or now_s - phase.since_s < MISSING_S:
        return
    missing = sorted(set(range(max(formed))) - set(known))
    if missing:
        core.state = replace(phase, told=True)
        places = ", ".join(map(str, missing))
        text = (
            f"{len(missing)} of {max(formed)} nodes missing after {MISSING_S:g} s, node {places}: "
            "nothing is recovered until they report to this manager; compare TASKD_MANAGER, TASKD_JOB_ID and the "
            "secret there"
        )
        core.job.out.append(Note(text, warns=True))


def form(core: "Recovery", now_s: float) -> None:
    """Begin, if the job is there: lost nodes of a former manager's world come first."""
    event = _formed(core.job, core.state, now_s) if isinstance(core.state, Forming) else None
    if event is None:
        return
    core.fire(event, now_s)
    if core.phase is Phase.RUNNING:
        for place in sorted(core.world.nodes.dead_nodes):
            core.fire(NodeLost(place), now_s)


def _formed(job: Job, phase: Forming, now_s: float) -> Formed | Isolated | None:
    world, views = job.world, job.world.nodes.views()
    if not views:
        return None
    ledger = max((view.status for view in views), key=age).ledger
    if ledger.term == 0:
        return Formed(None) if _is_whole(job) else None
    world.nodes.trust(ledger)
    newest = max(age(view.status)[:2] for view in views)
    for place, view in list(world.nodes.by_place.items()):
        member = place in ledger.places and world.nodes.was_held(place, view.status.agent_id)
        displaced = age(view.status)[:2] < newest and not member
        if displaced or _is_alone(view.status, world.generation):
            world.remove(world.on_node(place))  # of an older world, or it has begun as if the job were new
            world.nodes.demote(place)
    missing = set(ledger.places) - set(world.nodes.holders)
    waited_s = now_s - phase.since_s
    if missing and waited_s < job.policy.deadlines.takeover_s:
        return None
    if not missing or has_quorum(world.nodes, ledger.places, now_s, job.policy.membership):
        return Formed(ledger)
    if waited_s >= job.policy.deadlines.wait_node_s:
        return Isolated(f"for {job.policy.deadlines.wait_node_s:g} s too few others are heard to take over the job")
    return None


def may_be_whole(job: Job, status: NodeStatus) -> bool:
    """Whether so many nodes are heard as this one speaks of. If fewer are, time will tell (`tick`)."""
    return len(job.world.nodes.by_place) >= (len(status.ledger.places) or status.node_count or job.policy.node_count)


def _is_whole(job: Job) -> bool:
    """Every node that torchrun's rendezvous has formed is there: with `--nnodes=MIN:MAX` perhaps fewer than MAX."""
    formed = {view.status.node_count for view in job.world.nodes.by_place.values()} or {job.policy.node_count}
    if len(job.world.nodes.by_place) < max(formed):
        return False
    return job.world.places == tuple(range(max(formed)))


def _is_alone(status: NodeStatus, generation: int) -> bool:
    """A node of which no former manager knew. One that only missed the first directive has taken part in a step."""
    known = status.ledger.term > 0 or (generation == 0 and any(rank.step >= 0 for rank in status.ranks))
    return not known
