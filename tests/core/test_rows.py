"""Every row of every table can be reached by what an agent may really report, and its rows name where it leads."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from taskd.core import agent, recovery, worker
from taskd.core.agent import Node
from taskd.core.recovery import EVENT_OF_STAGE, Event, Phase
from taskd.core.table import Row
from taskd.core.worker import Input, Worker
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import (
    Condition,
    Directive,
    Ledger,
    Order,
    Place,
    RankOrder,
    RankStatus,
    Refuses,
    Stage,
    WorkerReport,
    WorldPlan,
)
from taskd.wire.state import StateDigest
from tests.core.driver import Job
from tests.sim.recorder import name, recorders

R0, R1 = JobRank(0), JobRank(1)


def used(machine: str, act: Callable[[], object]) -> set[str]:
    """The rows that were used meanwhile; none of them led where it must not."""
    with recorders()[machine].recording() as recorder:
        act()
    assert recorder.undeclared() == set()
    return {name(pair) for pair in recorder.seen}


# ---- the manager's table: a job in each phase, and what makes each event happen


class Small(Job):
    """Two nodes with one rank each."""

    def __init__(self, **more: Any) -> None:
        super().__init__(nodes=2, per_node=1, **more)


def forming() -> Job:
    job = Small()
    job.send(0)
    return job


def running() -> Job:
    return Small().up()


def strayed() -> Job:
    job = running()
    job.say(0, Stage.PAUSED)
    return job


def suspecting() -> Job:
    job = running().train(250)
    job.silent_until_asked(5.0)
    return job


def awaiting_quorum() -> Job:
    """Node 0 is silent, and the half without the first node decides nothing about the rank that it has lost."""
    job = running()
    job.now_s += 11.0
    job.send(1)
    job.core.tick(job.now_s)
    job.kill(1)
    return job


def rearranging() -> Job:
    job = running()
    job.spare()
    assert job.core.move_from("1", job.now_s)[0] == ""
    return job


def pausing() -> Job:
    job = running()
    job.kill(0)
    return job


def announcing() -> Job:
    """Of the last world's five nodes three are not heard, so that it is not known whether they know of the next one."""
    job = pausing()
    job.core.world.nodes.agreed |= {NodeRank(place): f"agent {place}" for place in (2, 3, 4)}
    return job.paused()


def joining() -> Job:
    return pausing().paused()


def resuming() -> Job:
    job = joining()
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED)
    return job


def restarting() -> Job:
    job = pausing()
    job.kill(1)
    return job


def finishing() -> Job:
    job = running()
    job.all(Stage.FINISHED)
    return job


def stopped() -> Job:
    job = Small(max_restarts=0).up()
    job.kill(0)
    return job


PHASES: dict[Phase, Callable[[], Job]] = {
    Phase.FORMING: forming,
    Phase.RUNNING: running,
    Phase.STRAYED: strayed,
    Phase.SUSPECTING: suspecting,
    Phase.AWAITING_QUORUM: awaiting_quorum,
    Phase.REARRANGING: rearranging,
    Phase.PAUSING: pausing,
    Phase.ANNOUNCING: announcing,
    Phase.JOINING: joining,
    Phase.RESUMING: resuming,
    Phase.RESTARTING: restarting,
    Phase.FINISHING: finishing,
    Phase.STOPPED: stopped,
}
CHOICES: dict[Event, Callable[[], object]] = {
    Event.KEPT: pausing,
    Event.RESTARTED: restarting,
    Event.UNDECIDED: awaiting_quorum,
    Event.REFUSED: stopped,
}
"""CHOOSING is left before anything else can happen: what leads into it leads through it."""
STAGES = {event.kind: stage for stage, event in EVENT_OF_STAGE.items() if stage is not Stage.RELEASED}


def isolate(job: Job) -> None:
    """Too few nodes are heard for so long as one is waited for."""
    policy = job.core.policy
    job.core.job.policy = replace(policy, deadlines=replace(policy.deadlines, wait_node_s=0.0))
    if job.phase is Phase.FORMING:
        agreed = tuple(Place(node_rank=NodeRank(place), agent_id=f"agent {place}") for place in range(3))
        job.ledger = Ledger(term=job.core.term, places=tuple(map(NodeRank, (0, 1, 2))), agreed=agreed)
        job.now_s += 5.0
        job.send(0)
    else:
        job.now_s += 11.0
    job.core.tick(job.now_s)


def lose_node(job: Job) -> None:
    job.now_s += 11.0
    if job.phase is not Phase.FORMING:
        job.send(0)
    job.core.tick(job.now_s)


def expire(job: Job) -> None:
    if job.phase is Phase.FINISHING:
        job.kill(0)
    job.wait(100.0)


def hang(job: Job) -> None:
    job.train(250)
    job.silent_until_asked(5.0)


def answer(job: Job) -> None:
    job.wait(0.15)
    for node in range(2):
        job.hear_evidence(node, {})


def corrupt(job: Job) -> None:
    """The states of two replicas are equal once, and differ then; there are copies to go back to."""
    policy = job.core.job.policy
    job.core.job.policy = replace(policy, strategies=replace(policy.strategies, replace_corrupted=True))
    for step, values in ((10, "xx"), (20, "xy")):
        for rank, value in enumerate(values):
            digests = (StateDigest(step=step, weights=value, optimizer="o"),)
            job.statuses[rank] = structs.replace(
                job.statuses[rank], digests=digests, backs_up=True, at_s=job.now_s + step
            )
            job.send(rank)


def ask_anew(job: Job) -> None:
    """A rank's self-check has changed its training."""
    job.say(1, Stage.COMMITTED, step=7, refuses=Refuses(no_rebuild="train.py:31", anew="the self-check (train.py:31)"))
    job.wait(0.1)


def drain(job: Job) -> None:
    job.spare()
    assert job.core.move_from("1", job.now_s)[0] == ""


def overtake(job: Job) -> None:
    job.statuses[1] = RankStatus(rank=R1, incarnation=9, generation=9, stage=Stage.STARTING)
    job.send(1)


HAPPENINGS: dict[Event, Callable[[Job], object]] = {
    Event.FORMED: lambda job: job.send(1),
    Event.EXPIRED: expire,
    Event.NODE_LOST: lose_node,
    Event.ISOLATED: isolate,
    Event.HUNG: hang,
    Event.ANSWERED: answer,
    Event.CORRUPTED: corrupt,
    Event.RESTART_ASKED: ask_anew,
    Event.ECHOED: lambda job: job.wait(0.1),
    Event.CANDIDATE: lambda job: job.spare(),
    Event.DRAINED: drain,
    Event.NODE_LEAVES: lambda job: job.send(1, leaving=True),
    Event.OVERTAKEN: overtake,
}


def happen(job: Job, event: Event) -> None:
    """Make it happen to a rank or node that has been as quiet as possible so far."""
    if event in HAPPENINGS:
        HAPPENINGS[event](job)
    else:
        job.say(0 if job.phase is Phase.AWAITING_QUORUM else 1, STAGES[event], step=7)


@pytest.mark.parametrize("pair", recovery.TABLE, ids=name)
def test_each_row_of_recovery(pair: tuple[Phase, Event]) -> None:
    phase, event = pair
    if phase is Phase.CHOOSING:
        assert name(pair) in used("recovery", CHOICES[event])
        return
    job = PHASES[phase]()
    assert job.phase is phase
    assert name(pair) in used("recovery", lambda: happen(job, event))


@pytest.mark.parametrize("pair", recovery.TABLE, ids=name)
def test_a_handler_changes_nothing_itself(pair: tuple[Phase, Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads facts and returns what is to be done: the facts, the phase and the event are as they were."""
    calls: list[bool] = []
    for key, row in recovery.TABLE.items():

        def act(phase: object, event: object, facts: object, now_s: float, row: Any = row) -> object:
            before = copy.deepcopy((phase, event, facts))
            following = row.act(phase, event, facts, now_s)
            calls.append((phase, event, facts) == before)
            return following

        monkeypatch.setitem(recovery.TABLE, key, Row(act, row.leads_to))
    test_each_row_of_recovery(pair)
    assert calls
    assert all(calls)


@pytest.mark.parametrize("pair", recovery.TABLE, ids=name)
def test_a_row_leads_to_two_phases_at_most(pair: tuple[Phase, Event]) -> None:
    """To three where the end of a process may be a fault, the end of the training, or that of the job."""
    more = pair[1] is Event.EXITED and pair[0] in (Phase.STRAYED, Phase.SUSPECTING)
    assert len(recovery.TABLE[pair].leads_to) <= (3 if more else 2)


# ---- the agent's table


def do(node: Node, event: agent.NodeEvent) -> None:
    match event:
        case agent.NodeEvent.DIRECTED:
            node.connected(R0)
        case agent.NodeEvent.REPORTED:
            report = WorkerReport(generation=1, stage=Stage.TRAINING, step=1, condition=Condition.CLEAN)
            node.report(R0, report)
        case agent.NodeEvent.ENDED:
            node.ended(R0, status=-9, cause="", at_s=1.0)
        case agent.NodeEvent.STARTED:
            node.started(RankStatus(rank=R0, incarnation=5, generation=1, stage=Stage.STARTING))


@pytest.mark.parametrize("pair", agent.TABLE, ids=name)
def test_each_row_of_the_node(pair: tuple[agent.RankState, agent.NodeEvent]) -> None:
    state, event = pair
    node = Node()
    node.started(RankStatus(rank=R0, incarnation=0, generation=0, stage=Stage.STARTING))
    if state is agent.RankState.FENCED:
        ranks = (RankOrder(rank=R0, incarnation=1),)
        node.obey(Directive(job_id="job", sequence=1, generation=1, order=Order.RUN, ranks=ranks))
    elif state is agent.RankState.ENDED:
        node.ended(R0, status=0, cause="", at_s=1.0)
    assert node.slots[R0].state is state
    assert used("node", lambda: do(node, event)) == {name(pair)}


# ---- the worker's table

PLAN = WorldPlan(
    generation=1,
    world_size=2,
    store_host="h",
    store_port=1,
    target_step=1,
    adopt=(),
    transfers=(),
    timeout_s=1.0,
)
E = worker.WorkerEvent
PATHS: dict[worker.WorkerState, tuple[worker.WorkerEvent, ...]] = {
    worker.WorkerState.SETUP: (),
    worker.WorkerState.TRAINING: (E.ENTER,),
    worker.WorkerState.INTERRUPTED: (E.ENTER, E.PAUSE),
    worker.WorkerState.PAUSED: (E.ENTER, E.PAUSE, E.RAISED),
    worker.WorkerState.JOINING: (E.ENTER, E.PAUSE, E.RAISED, E.JOIN),
    worker.WorkerState.FINISHED: (E.ENTER, E.RETURNED),
    worker.WorkerState.RELEASED: (E.ENTER, E.RETURNED, E.RELEASE),
}


@pytest.mark.parametrize("pair", worker.TABLE, ids=name)
def test_each_row_of_the_worker(pair: tuple[worker.WorkerState, worker.WorkerEvent]) -> None:
    state, event = pair
    machine = Worker()
    for step in PATHS[state]:
        machine.feed(Input(step, generation=1, step=1, condition=Condition.CLEAN, plan=PLAN))
    assert machine.state is state
    assert used("worker", lambda: machine.feed(Input(event, generation=2, step=1, plan=PLAN))) == {name(pair)}
