"""Every row of every table can be reached by what an agent may really report, and its rows name where it leads."""

from collections.abc import Callable

import pytest

from taskd.core import agent, recovery, worker
from taskd.core.agent import Node
from taskd.core.phases import EVENT_OF_STAGE, Event, Phase
from taskd.core.worker import Input, Worker
from taskd.wire.messages import Condition, Directive, Order, RankOrder, RankStatus, Stage, WorkerReport, WorldPlan
from tests.core.driver import Job
from tests.sim.recorder import name, recorders


def used(machine: str, act: Callable[[], object]) -> set[str]:
    """The rows that were used meanwhile; none of them led where it must not."""
    with recorders()[machine].recording() as recorder:
        act()
    assert recorder.undeclared() == set()
    return {name(pair) for pair in recorder.seen}


# ---- the manager's table: a job in each phase, and what makes each event happen


def forming() -> Job:
    job = Job(nodes=2, per_node=1)
    job.send(0)
    return job


def strayed() -> Job:
    job = Job(nodes=2, per_node=1).up()
    job.say(0, Stage.PAUSED)
    return job


def pausing() -> Job:
    job = Job(nodes=2, per_node=1).up()
    job.kill(0)
    return job


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
    job = Job(nodes=2, per_node=1).up()
    job.all(Stage.FINISHED)
    return job


def stopped() -> Job:
    job = Job(nodes=2, per_node=1, max_restarts=0).up()
    job.kill(0)
    return job


PHASES: dict[Phase, Callable[[], Job]] = {
    Phase.FORMING: forming,
    Phase.RUNNING: lambda: Job(nodes=2, per_node=1).up(),
    Phase.STRAYED: strayed,
    Phase.PAUSING: pausing,
    Phase.JOINING: joining,
    Phase.RESUMING: resuming,
    Phase.RESTARTING: restarting,
    Phase.FINISHING: finishing,
    Phase.STOPPED: stopped,
}
STAGES = {event: stage for stage, event in EVENT_OF_STAGE.items() if stage is not Stage.RELEASED}


def happen(job: Job, event: Event) -> None:
    """Make it happen to rank or node 1, which has been as quiet as possible so far."""
    if event is Event.EXPIRED:
        if job.phase is Phase.FINISHING:
            job.kill(0)
        job.wait(100.0)
    elif event is Event.NODE_LOST:
        job.now_s += 11.0
        silent = 0 if job.phase is Phase.FORMING else 1
        if silent:
            job.send(0)
        job.core.tick(job.now_s)
    elif event is Event.HUNG:
        job.train(250)
        job.silent_until_asked(5.0)
    elif event is Event.ANSWERED:
        job.wait(0.15)
        for node in range(2):
            job.hear_evidence(node, {})
    elif event is Event.CANDIDATE:
        job.spare()
    elif event is Event.DRAINED:
        job.spare()
        assert job.core.move_from("1", job.now_s)[0] == ""
    elif event is Event.NODE_LEAVES:
        job.send(1, leaving=True)
    elif event is Event.OVERTAKEN:
        job.statuses[1] = RankStatus(rank=1, incarnation=9, generation=9, stage=Stage.STARTING)
        job.send(1)
    else:
        job.say(1, STAGES[event], step=7)


@pytest.mark.parametrize("pair", recovery.TABLE, ids=name)
def test_each_row_of_recovery(pair: tuple[Phase, Event]) -> None:
    phase, event = pair
    job = PHASES[phase]()
    assert job.phase is phase
    assert name(pair) in used("recovery", lambda: happen(job, event))


# ---- the agent's table


def do(node: Node, event: agent.NodeEvent) -> None:
    match event:
        case agent.NodeEvent.DIRECTED:
            node.connected(0)
        case agent.NodeEvent.REPORTED:
            report = WorkerReport(generation=1, stage=Stage.TRAINING, step=1, condition=Condition.CLEAN)
            node.report(0, report)
        case agent.NodeEvent.ENDED:
            node.ended(0, clean=False, cause="", at_s=1.0)
        case agent.NodeEvent.STARTED:
            node.started(RankStatus(rank=0, incarnation=5, generation=1, stage=Stage.STARTING))


@pytest.mark.parametrize("pair", agent.TABLE, ids=name)
def test_each_row_of_the_node(pair: tuple[agent.RankState, agent.NodeEvent]) -> None:
    state, event = pair
    node = Node()
    node.started(RankStatus(rank=0, incarnation=0, generation=0, stage=Stage.STARTING))
    if state is agent.RankState.FENCED:
        ranks = (RankOrder(rank=0, incarnation=1),)
        node.obey(Directive(job_id="job", sequence=1, generation=1, order=Order.RUN, ranks=ranks))
    elif state is agent.RankState.ENDED:
        node.ended(0, clean=True, cause="", at_s=1.0)
    assert node.slots[0].state is state
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
