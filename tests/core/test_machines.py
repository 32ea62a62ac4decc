"""Arbitrary events in any order: a pair that is not in a table raises and changes nothing, and no order corrupts."""

import copy
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from taskd.core.agent import Fence, Node, RankState, Start, StopNode
from taskd.core.policy import Policy
from taskd.core.recovery import Action, JobEnded, Phase, Publish, Recovery
from taskd.core.recovery.phases import BUILDING
from taskd.core.worker import Input, Worker, WorkerEvent, WorkerState
from taskd.errors import TransitionError
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import (
    Condition,
    Directive,
    NodeStatus,
    Order,
    RankOrder,
    RankStatus,
    Stage,
    WorkerReport,
    WorldPlan,
)
from tests.core.driver import DEADLINES

SETTINGS = settings(
    max_examples=200, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
RANKS = 3
ranks = st.integers(0, RANKS - 1)
steps = st.integers(-1, 9)
stages = st.sampled_from(Stage)
conditions = st.sampled_from(Condition)


def plan(generation: int) -> WorldPlan:
    return WorldPlan(
        generation=generation,
        world_size=RANKS,
        store_host="h",
        store_port=1,
        target_step=1,
        adopt=(),
        transfers=(),
        timeout_s=1.0,
    )


class RecoveryMachine(RuleBasedStateMachine):
    """Manager's table with one rank per node, so a rejected report is rejected as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Recovery(Policy("job", RANKS, 1, deadlines=DEADLINES))
        self.now_s = 0.0
        self.sequence = 0
        self.published = (0, 0)

    @rule(
        rank=ranks,
        stage=stages,
        behind=st.sampled_from([0, 0, 0, 1]),
        newer=st.sampled_from([0, 0, 0, 0, -1, 1]),
        step=steps,
        condition=conditions,
        leaving=st.integers(0, 60),
    )
    def hear(
        self, rank: int, stage: Stage, behind: int, newer: int, step: int, condition: Condition, leaving: int
    ) -> None:
        view = self.core.world.ranks.get(JobRank(rank))
        self.sequence += 1
        status = RankStatus(
            rank=JobRank(rank),
            incarnation=max(0, (view.incarnation if view else 0) + newer),
            generation=max(0, self.core.world.generation - behind),
            stage=stage,
            step=step,
            condition=condition,
            at_s=float(self.sequence),
        )
        report = NodeStatus(
            job_id="job",
            node_rank=NodeRank(rank),
            agent_id=f"a{rank}",
            sequence=self.sequence,
            node_count=RANKS,
            ranks=(status,),
            store_host="h",
            store_port=1,
            standbys=0,
            max_restarts=20,
            generation=0,
            leaving=leaving == 60,
        )
        before = copy.deepcopy(self.core)
        try:
            actions = self.core.hear(report, self.now_s)
        except TransitionError:
            before.world.nodes.by_place = self.core.world.nodes.by_place
            before.world.nodes.dead_nodes = self.core.world.nodes.dead_nodes
            for known, view in before.world.ranks.items():  # a node that is back starts its deadline again
                view.since_s = self.core.world.ranks[known].since_s
            assert self.core == before
            return
        self._check(actions)

    @rule(length_s=st.sampled_from([0.1, 1.0, 3.0, 9.0, 70.0]))
    def wait(self, length_s: float) -> None:
        self.now_s += length_s
        self._check(self.core.tick(self.now_s))

    def _check(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish(directive):
                    newest = (directive.sequence, directive.generation)
                    assert newest[0] > self.published[0]
                    assert newest[1] >= self.published[1]
                    self.published = newest
                    assert (directive.plan is not None) == (directive.order is Order.JOIN)
                case JobEnded(reason, _, _):
                    assert reason
                    assert self.core.phase is Phase.STOPPED
                case _:
                    pass

    @invariant()
    def consistent(self) -> None:
        core = self.core
        assert (core.record is not None) == (core.phase in (*BUILDING, Phase.RESTARTING))
        assert core.job.budget is None or core.job.budget.spent <= core.job.budget.max_restarts
        assert core.job.out == []
        assert core.directive is None or core.directive.generation == core.world.generation


class NodeMachine(RuleBasedStateMachine):
    """Table of one agent under any order of directives, reports and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.sequence = 0
        self.waiting: dict[int, Start] = {}
        for rank in range(RANKS):
            self.node.started(RankStatus(rank=JobRank(rank), incarnation=0, generation=0, stage=Stage.STARTING))

    @rule(order=st.sampled_from(Order), generation=st.integers(0, 5), raised=st.integers(0, 2), old=st.booleans())
    def obey(self, order: Order, generation: int, raised: int, old: bool) -> None:
        known = self.node.directive
        self.sequence += not old
        incarnations = [
            slot.status.incarnation + (raised if rank == 0 else 0) for rank, slot in self.node.slots.items()
        ]
        directive = Directive(
            job_id="job",
            sequence=self.sequence,
            generation=generation,
            order=order,
            ranks=tuple(RankOrder(rank=JobRank(rank), incarnation=inc) for rank, inc in enumerate(incarnations)),
            plan=plan(generation) if order is Order.JOIN else None,
        )
        actions = self.node.obey(directive)
        if known is not None and (generation, self.sequence) <= (known.generation, known.sequence):
            assert actions == []
            assert self.node.directive is known
        self._perform(actions)

    @rule(rank=ranks, stage=stages, generation=st.integers(0, 5))
    def report(self, rank: int, stage: Stage, generation: int) -> None:
        slot = self.node.slots[JobRank(rank)]
        gone, before = slot.state is not RankState.RUNNING, slot.status
        self._perform(
            self.node.report(
                JobRank(rank),
                WorkerReport(generation=generation, stage=stage, step=1, condition=Condition.CLEAN, at_s=1.0),
            )
        )
        assert not gone or slot.status == before

    @rule(rank=ranks)
    def connect(self, rank: int) -> None:
        self._perform(self.node.connected(JobRank(rank)))

    @rule(rank=ranks, clean=st.booleans())
    def end(self, rank: int, clean: bool) -> None:
        self._perform(self.node.ended(JobRank(rank), status=0 if clean else -9, cause="x", at_s=2.0))
        assert self.node.slots[JobRank(rank)].state is RankState.ENDED

    @rule(rank=ranks)
    def start(self, rank: int) -> None:
        wanted = self.waiting.pop(rank, None)
        if wanted is not None:
            self.node.started(
                RankStatus(
                    rank=JobRank(rank),
                    incarnation=wanted.incarnation,
                    generation=wanted.generation,
                    stage=Stage.STARTING,
                )
            )
            assert self.node.slots[JobRank(rank)].state is RankState.RUNNING

    def _perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Start(rank=rank, incarnation=incarnation):
                    slot = self.node.slots[rank]
                    assert slot.state is RankState.ENDED
                    assert incarnation > slot.status.incarnation
                    assert not self.node.stopped
                    self.waiting[rank] = action
                case Fence(rank=rank):
                    assert self.node.slots[rank].state is not RankState.RUNNING
                case StopNode():
                    assert self.node.stopped
                case _:
                    pass

    @invariant()
    def nothing_pending(self) -> None:
        assert self.node._out == []


class WorkerMachine(RuleBasedStateMachine):
    """Table of one rank under any order of its own events and the agent's orders."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(joins=False)

    @rule(event=st.sampled_from(WorkerEvent), generation=st.integers(0, 6), step=steps, condition=conditions)
    def feed(self, event: WorkerEvent, generation: int, step: int, condition: Condition) -> None:
        given = Input(event, generation, step, condition, "", plan(generation) if event is WorkerEvent.JOIN else None)
        before = copy.deepcopy(self.worker)
        try:
            self.worker.feed(given)
        except TransitionError:
            assert self.worker == before
            return
        assert self.worker.generation >= before.generation
        assert self.worker.pause_generation >= before.pause_generation
        if event is WorkerEvent.PAUSE and generation <= max(before.generation, before.pause_generation):
            assert self.worker.state is before.state
        if event is WorkerEvent.JOIN and generation != before.pause_generation:
            assert self.worker == before
        if event is WorkerEvent.RELEASE and generation < before.generation:
            assert self.worker == before

    @invariant()
    def consistent(self) -> None:
        worker = self.worker
        assert worker._out == []
        assert worker.state is not WorkerState.PAUSED or worker.pause_generation >= worker.generation


@pytest.mark.parametrize("machine", [RecoveryMachine, NodeMachine, WorkerMachine])
def test_no_order_of_events_corrupts(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
