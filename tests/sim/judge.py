"""What must hold at every moment of every simulated job. The first breach ends the run.

1. One living process per rank; incarnations only rise.
2. Ranks of one collective hold the same state of the same step, and no older world trains after a newer one.
3. Every rank commits step after step; state and step belong together; a torn state is never given or kept.
4. A plan never resumes below what every rank has committed, nor below what a living clean rank holds.
5. All are let go only after all have finished. Training starts anew only for a reason that is true.
6. Messages of an older generation or incarnation change nothing. The budget is kept.
7. The job ends: all steps done, or stopped for a reason that the faults explain.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskd.core.agent import Action as NodeAction
from taskd.core.agent import Start
from taskd.core.record import FaultRecord
from taskd.core.recovery import Action, Recovery
from taskd.core.worker import State
from taskd.wire.messages import Condition, Directive, Join, NodeStatus, Order, Pause, Release, Stage, WorldPlan
from tests.sim.process import Process, chain

if TYPE_CHECKING:
    from tests.sim.nodes import Agent
    from tests.sim.world import Sim

GONE = (Stage.DEAD, Stage.EXITED)


class BreachError(Exception):
    """An invariant does not hold."""


def demand(holds: bool, text: str, *args: object) -> None:
    if not holds:
        raise BreachError(text.format(*args))


class Judge:
    """Sees everything that happens in one simulated job."""

    def __init__(self, sim: "Sim") -> None:
        self.sim = sim
        self.training = -1  # newest generation in which a collective of training was over
        self.committed_by: dict[int, int] = {}
        self.lives = 1
        self.takeovers = 0
        self.anew: list[str] = []
        self.done: set[int] = set()
        self._orders: tuple[int, ...] = ()
        self._chain = {step: chain(step) for step in range(sim.script.bounds[-1] + 1)}

    # ---- processes

    def started(self, process: Process, former: Process | None) -> None:
        demand(former is None or not former.alive, "{} starts while {} lives", process.name, former and former.name)
        demand(former is None or former.incarnation < process.incarnation, "{} is not new", process.name)
        self.sim.clock.note(process.name, "starts, generation {}, joins {}", process.worker.generation, process.joins)

    def wanted(self, agent: "Agent", start: Start) -> None:
        demand(not agent.processes[start.rank].alive, "rank {} is to start while its process lives", start.rank)
        demand(not agent.stopped, "rank {} is to start after the stop", start.rank)

    def loaded(self, process: Process) -> None:
        process.held = process.step
        self.committed_by[process.rank] = process.step
        self.done.discard(process.rank)

    def committed(self, process: Process, *, adopted: bool = False) -> None:
        step = process.step
        self.sim.clock.note(process.name, "{} step {}", "adopts" if adopted else "commits", step)
        demand(process.alive, "{} commits after its end", process.name)
        demand(process.state == self._chain[step], "{} holds a wrong state of step {}", process.name, step)
        demand(step == process.held + 1, "{}: step {} after {}", process.name, step, process.held)
        process.held = step
        self.committed_by[process.rank] = step
        if self.sim.script.checkpoint_every and step % self.sim.script.checkpoint_every == 0:
            self.sim.checkpoint = max(self.sim.checkpoint, min(self.committed_by.values()))

    def restored(self, process: Process, plan: WorldPlan) -> None:
        demand(process.condition is Condition.CLEAN, "{} restored to {}", process.name, process.condition)
        demand(process.step == plan.target_step, "{} restored to step {}, plan {}", process.name, process.step, plan)
        demand(process.state == self._chain[process.step], "{} restored a wrong state", process.name)
        process.held = process.step
        self.committed_by[process.rank] = process.step

    def completed(self, process: Process) -> None:
        demand(process.step == self.sim.script.bounds[-1], "{} ended at step {}", process.name, process.step)
        self.done.add(process.rank)

    def checks(self, generation: int, key: object) -> Callable[[dict[int, Any]], None]:
        """What is demanded of a collective when its last member has come."""
        if not isinstance(key, tuple) or key[0] != "step":
            return lambda _payloads: None

        def check(payloads: dict[int, Any]) -> None:
            demand(generation >= self.training, "generation {} trains after {}", generation, self.training)
            self.training = generation
            demand(len(set(payloads.values())) == 1, "ranks at different states: {}", payloads)

        return check

    # ---- messages

    def heard(self, process: Process, message: Pause | Join | Release, *, changed: bool) -> None:
        generation = message.plan.generation if isinstance(message, Join) else message.generation
        newest = process.worker.generation
        demand(not changed or generation >= newest, "{} at {} obeyed {}", process.name, newest, message)

    def obeyed(self, node_rank: int, directive: Directive, known: int, actions: list[NodeAction]) -> None:
        demand(directive.generation >= known or not actions, "node {} at {} obeyed {}", node_rank, known, directive)

    def stale(self, core: Recovery, status: NodeStatus) -> bool:
        """Everything in this report is of an older generation or an older process."""
        if core.phase.value in ("forming", "restarting"):  # a restart looks also at those it did not start
            return False
        ranks = core.world.ranks
        if status.leaving or any(rank.rank not in ranks for rank in status.ranks):
            return False
        return all(
            s.incarnation < ranks[s.rank].incarnation
            or (
                s.incarnation == ranks[s.rank].incarnation
                and s.generation < core.world.generation
                and s.stage not in GONE
            )
            for s in status.ranks
        )

    def heard_stale(self, status: NodeStatus, known: int, actions: list[Action]) -> None:
        demand(not actions, "a stale report at generation {} has led to {}: {}", known, actions, status)

    def new_manager(self) -> None:
        self.takeovers += 1
        self._orders = ()

    # ---- the manager's decisions

    def published(self, core: Recovery, directive: Directive) -> None:
        budget = core.budget
        demand(budget is None or budget.spent <= budget.max_restarts, "{} restarts are spent", budget and budget.spent)
        incarnations = tuple(order.incarnation for order in directive.ranks)
        fresh = (
            bool(self._orders)
            and directive.order is Order.RUN
            and all(new > old for new, old in zip(incarnations, self._orders, strict=True))
        )
        self._orders = incarnations
        match directive.order:
            case Order.JOIN if directive.plan is not None:
                self._planned(directive.plan)
            case Order.RELEASE:
                self._released()
            case Order.RUN if fresh:
                self._anew(core)
            case _:
                pass

    def _planned(self, plan: WorldPlan) -> None:
        floor = min(self.committed_by.get(rank, 0) for rank in self.sim.everybody)
        demand(plan.target_step >= floor, "all had committed {}, the plan is {}", floor, plan)
        for process in self._living():
            there = process.worker.state is State.PAUSED and process.worker.pause_generation == plan.generation
            demand(there, "{} is not paused for {}", process.name, plan)
            if process.condition is Condition.CLEAN:
                demand(plan.target_step >= process.step, "{} holds step {}, plan {}", process.name, process.step, plan)
        for transfer in plan.transfers:
            demand(len({transfer.donor, *transfer.receivers}) == 1 + len(transfer.receivers), "{}", transfer)

    def _released(self) -> None:
        if self.takeovers:  # the new manager may have heard of this finish after the ranks were let go
            return
        for process in self._living():
            state = process.worker.state
            demand(state in (State.FINISHED, State.RELEASED), "{} is let go in state {}", process.name, state)
            bound = self.sim.script.bounds[process.call - (state is State.RELEASED)]
            demand(process.step >= bound, "{} is let go at step {} of {}", process.name, process.step, bound)

    def _anew(self, core: Recovery) -> None:
        self.lives += 1
        self.sim.clock.note("judge", "all start anew: {}", core.record and core.record.reason)
        reason = core.record.reason if core.record is not None else ""
        self.anew.append(reason)
        holders = [p.name for p in self._living() if p.condition in (Condition.CLEAN, Condition.STEPPED)]
        for claim in ("no rank is left to give its state", "no rank holds a consistent state"):
            demand(claim not in reason or not holders, "all start anew ({}), but {} hold their state", reason, holders)

    def recovered(self, record: FaultRecord) -> None:
        times = [
            record.detected_s,
            record.paused_s,
            record.planned_s,
            record.joined_s,
            record.restored_s,
            record.resumed_s,
        ]
        known = [time for time in times if time is not None]
        demand(known == sorted(known), "milestones out of order: {}", record)
        demand(record.restart or None not in times, "a milestone is missing: {}", record)

    def _living(self) -> list[Process]:
        return [p for agent in self.sim.agents for p in agent.processes.values() if p.alive and not p.hung]
