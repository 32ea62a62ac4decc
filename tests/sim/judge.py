"""Invariants of every simulated job, at every moment. The first breach ends the run.

1. One process per rank and generation; on one node also one living process per rank. Incarnations only rise.
2. Ranks of one collective are at the same step, and ranks of one replica set hold the same state. No older world trains
   after a newer one.
3. Every rank commits step after step. State, step and replica set belong together. A torn state is never given or kept.
   No rank receives the state of another set, and none resumes if its set had no holder.
4. A plan never resumes below a step that every rank has committed, or below one that a living clean rank holds.
5. Ranks are released only after all have finished. Training restarts from the beginning only for a true reason.
6. Messages of an older generation or incarnation change nothing. The budget is kept.
7. No place has two holders. Only a process of a place's holder joins a world, and each generation has one plan.
8. No healthy process is replaced as hung.
9. The job ends: all steps done, or stopped for a reason that the faults explain (`outcome.py`).
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from taskd.core.agent import Action as NodeAction
from taskd.core.agent import Start
from taskd.core.diagnosis.findings import Kind
from taskd.core.recovery import Action, Diagnosed, Recovery
from taskd.core.recovery.record import FaultRecord
from taskd.core.worker import WorkerState
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Condition, Directive, Join, NodeStatus, Order, Pause, Release, Stage, WorldPlan
from tests.sim.chain import chain
from tests.sim.network import LONGEST_SILENCE_S
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.manager import Manager
    from tests.sim.nodes import Agent
    from tests.sim.world import Sim

GONE = (Stage.DEAD, Stage.EXITED)


class BreachError(Exception):
    """Breach of an invariant."""


def demand(holds: bool, text: str, *args: object) -> None:
    if not holds:
        raise BreachError(text.format(*args))


class Judge:
    """Observer of all events of one simulated job."""

    def __init__(self, sim: "Sim") -> None:
        self.sim = sim
        self.training = -1  # newest generation in which a collective of training was over
        self.committed_by: dict[int, int] = {}
        self.settled = 0  # newest step that every rank of its world had committed, since the last restart of all
        self.lives = 1
        self.life = 0  # generation of the last restart of all
        self.takeovers = 0
        self.anew: list[str] = []
        self.done: set[int] = set()
        self.hangs_found = 0
        self._by_pid: dict[int, Process] = {}
        self._plans: dict[int, WorldPlan] = {}
        self._holders: dict[tuple[int, int], str] = {}
        self._plan: WorldPlan | None = None
        self._commits: dict[tuple[int, int], int] = {}
        self._sets: tuple[int, set[str]] = (0, set())
        """Generation in which all ranks started last, and their replica sets then."""
        steps = range(sim.script.bounds[-1] + 1)
        self._chains = {key: [chain(step, key) for step in steps] for key in map(sim.replicas_of, sim.everybody)}

    def diagnosed(self, told: Diagnosed) -> None:
        """Require that no healthy process is blamed for a hang."""
        for fact in told.diagnosis.facts:
            process = told.evidence[fact.rank].process if fact.kind is Kind.STOPPED else None
            if process is not None:
                hung = self._by_pid[process.pid].hung
                demand(hung, "rank {} is blamed: {}", fact.rank, told.diagnosis.sentence)
                self.hangs_found += 1

    # ---- processes

    def started(self, process: Process, former: Process | None) -> None:
        demand(former is None or not former.alive, "{} starts while {} lives", process.name, former and former.name)
        demand(former is None or former.incarnation < process.incarnation, "{} is not new", process.name)
        self._by_pid[process.pid] = process
        self.sim.clock.note(process.name, "starts, generation {}, joins {}", process.worker.generation, process.joins)

    def wanted(self, agent: "Agent", start: Start) -> None:
        former = agent.processes.get(start.rank)
        demand(former is None or not former.alive, "rank {} is to start while its process lives", start.rank)
        demand(not agent.stopped, "rank {} is to start after the stop", start.rank)

    def loaded(self, process: Process) -> None:
        generation = process.group.generation if process.group is not None else 0
        if generation > self._sets[0]:
            self._sets = (generation, set())
            self.settled = min(self.settled, process.step)  # also if a manager that is superseded by now has ordered it
        if generation == self._sets[0]:
            self._sets[1].add(process.replicas)
        process.held = process.step
        self.committed_by[process.rank] = process.step
        self.done.discard(process.rank)

    def committed(self, process: Process, *, adopted: bool = False) -> None:
        step = process.step
        self.sim.clock.note(process.name, "{} step {}", "adopts" if adopted else "commits", step)
        demand(process.alive, "{} commits after its end", process.name)
        demand(self._is_right(process), "{} holds a wrong state of step {}", process.name, step)
        demand(step == process.held + 1, "{}: step {} after {}", process.name, step, process.held)
        process.held = step
        self.committed_by[process.rank] = step
        generation = process.group.generation if process.group is not None else 0
        self._commits[generation, step] = count = self._commits.get((generation, step), 0) + 1
        if count == len(process.members) and generation >= self.life:
            self.settled = max(self.settled, step)
        if self.sim.script.checkpoint_every and step % self.sim.script.checkpoint_every == 0:
            self.sim.checkpoint = max(self.sim.checkpoint, self.settled)

    def adopts(self, process: Process, plan: WorldPlan) -> None:
        there = process.condition is Condition.STEPPED and process.step == plan.target_step - 1
        demand(there, "{} is {} at {}: {}", process.name, process.condition, process.step, plan)

    def _is_right(self, process: Process) -> bool:
        return process.state == self._chains[process.replicas][process.step]

    def dumped(self, process: Process, plan: WorldPlan) -> None:
        demand(process.step == plan.target_step, "{} dumps step {}, plan {}", process.name, process.step, plan)
        demand(process.condition is Condition.CLEAN, "{} dumps a state that is {}", process.name, process.condition)

    def restored(self, process: Process, plan: WorldPlan) -> None:
        first = self._plans.setdefault(plan.generation, plan)
        demand(plan == first, "two plans of one generation: {} and {}", first, plan)
        place = process.rank // self.sim.policy.ranks_per_node
        holder = self._holders.get((plan.generation, place))
        demand(holder == process.agent.name, "{} joins, but {} holds place {}", process.name, holder, place)
        demand(process.condition is Condition.CLEAN, "{} restored to {}", process.name, process.condition)
        if plan.loads or plan.saved:
            self.settled = min(self.settled, plan.target_step)
        demand(process.step == plan.target_step, "{} restored to step {}, plan {}", process.name, process.step, plan)
        demand(self._is_right(process), "{} restored a wrong state", process.name)
        process.held = process.step
        self.committed_by[process.rank] = process.step

    def completed(self, process: Process) -> None:
        demand(process.step == self.sim.script.bounds[-1], "{} ended at step {}", process.name, process.step)
        self.done.add(process.rank)

    def checks(self, generation: int, key: object) -> Callable[[dict[int, Any]], None]:
        """Return the check of a collective, to be called when its last member has come."""
        if not isinstance(key, tuple) or key[0] != "step":
            return lambda _payloads: None

        def check(payloads: dict[int, Any]) -> None:
            demand(generation >= self.training, "generation {} trains after {}", generation, self.training)
            self.training = generation
            states = {(self.sim.replicas_of(rank), payload) for rank, payload in payloads.items()}
            sets, steps = {key for key, _ in states}, {step for _, (step, _) in states}
            demand(len(states) == len(sets) and len(steps) == 1, "ranks at different states: {}", payloads)

        return check

    # ---- messages

    def heard(self, process: Process, message: Pause | Join | Release, *, changed: bool) -> None:
        generation = message.plan.generation if isinstance(message, Join) else message.generation
        newest = process.worker.generation
        demand(not changed or generation >= newest, "{} at {} obeyed {}", process.name, newest, message)

    def obeyed(self, name: str, directive: Directive, known: Directive | None, actions: list[NodeAction]) -> None:
        newer = known is None or _newness(directive) > _newness(known)
        demand(newer or not actions, "{} at {} obeyed {}", name, known, directive)

    def stale(self, core: Recovery, status: NodeStatus) -> bool:
        """Return whether everything in this report is of an older generation or an older process."""
        if core.phase.value in ("forming", "restarting"):  # a restart also considers processes that it did not start
            return False
        ranks = core.world.ranks
        if core.world.nodes.place_of(status.agent_id) is None or not status.ranks or status.ledger.term > core.term:
            return False
        newer = max(status.generation, *(rank.generation for rank in status.ranks)) > core.world.generation
        if newer or status.leaving or any(rank.rank not in ranks for rank in status.ranks):
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

    # ---- the manager's decisions

    def published(self, manager: "Manager", directive: Directive) -> None:
        core = manager.core
        budget = core.job.budget
        demand(not core.superseded, "{} decides although it is superseded", manager.name)
        demand(budget is None or budget.spent <= budget.max_restarts, "{} restarts are spent", budget and budget.spent)
        holders = {place.node_rank: place.agent_id for place in directive.places}
        demand(len(holders) == len(directive.places) == len(set(holders.values())), "two holders: {}", directive.places)
        restarts = core.record is not None and core.record.decision.restart and directive.generation > self.life
        match directive.order:
            case Order.JOIN if directive.plan is not None and directive.plan is not self._plan:
                self._plan = directive.plan  # it is sent again, with a question to its ranks
                self._planned(directive.plan, manager)
                self._holders |= {(directive.generation, place): holder for place, holder in holders.items()}
            case Order.RELEASE:
                self._released(directive)
            case Order.RUN if restarts and manager is self.sim.manager:
                self._anew(core, directive)
            case _:
                pass

    def _rows(self, plan: WorldPlan) -> None:
        """Require that a job whose mesh covers all ranks continues only with whole replicas of the state."""
        rows = [process.row for process in self._living(plan.ranks)]
        known = [row.name for row in rows if row is not None and not row.refusal]
        if plan.dump or not rows or len(known) < len(rows):
            return
        wanted = {row.name: row.size for row in rows if row is not None}
        of_all = {rank: self.sim.row_of(rank, whole=True) for rank in plan.ranks}
        for name, size in wanted.items():
            there = [rank for rank, row in of_all.items() if row is not None and row.name == name]
            demand(len(there) == size, "half of {} in {}", name, plan)

    def _planned(self, plan: WorldPlan, manager: "Manager") -> None:
        if manager is not self.sim.manager or len(self.sim.deciding()) > 1:
            return  # no rank may join its plan; the check of joins covers that
        back = bool(plan.loads) or plan.saved
        demand(back or plan.target_step >= self.settled, "all had committed {}, the plan is {}", self.settled, plan)
        demand(list(plan.ranks) == sorted(set(plan.ranks)), "members of {}", plan)
        missing = self._sets[1] - set(map(self.sim.replicas_of, plan.ranks))
        demand(not missing, "nobody is left of replica set {}: {}", missing, plan)
        self._rows(plan)
        for process in self._living(plan.ranks):
            there = process.worker.state is WorkerState.PAUSED and process.worker.pause_generation == plan.generation
            demand(there, "{} is not paused for {}", process.name, plan)
            kept = plan.target_step >= process.step or back or process.step not in self._common_steps(plan.ranks)
            demand(kept or process.condition is not Condition.CLEAN, "{} holds a later step: {}", process.name, plan)
        for transfer in plan.transfers:
            demand(len({transfer.donor, *transfer.receivers}) == 1 + len(transfer.receivers), "{}", transfer)
            ranks = [plan.ranks[one] for one in (transfer.donor, *transfer.receivers)]
            demand(len(set(map(self.sim.replicas_of, ranks))) == 1, "from one replica set to another: {}", transfer)
        for load in plan.loads:
            same = self.sim.replicas_of(plan.ranks[load.receiver]) == self.sim.replicas_of(load.of)
            demand(same, "from one replica set to another: {}", load)
        demand(not plan.saved or plan.target_step <= self.sim.checkpoint, "no checkpoint of that step: {}", plan)
        needless = back and self._common_steps(plan.ranks, sets=self._chains)
        demand(not needless, "all go back, but {} can be reached: {}", needless, plan)

    def _released(self, directive: Directive) -> None:
        if self.takeovers:  # the new manager may have received this finish after the release of the ranks
            return
        for process in self._living([order.rank for order in directive.ranks]):
            state = process.worker.state
            demand(
                state in (WorkerState.FINISHED, WorkerState.RELEASED), "{} is let go in state {}", process.name, state
            )
            bound = self.sim.script.bounds[process.call - (state is WorkerState.RELEASED)]
            demand(process.step >= bound, "{} is let go at step {} of {}", process.name, process.step, bound)

    def _anew(self, core: Recovery, directive: Directive) -> None:
        demand(not any(order.joins for order in directive.ranks), "all start anew, but some join: {}", directive)
        self.lives += 1
        self.life = core.world.generation
        self.settled = 0
        self.sim.clock.note("judge", "all start anew: {}", core.record and core.record.decision.reason)
        reason = core.record.decision.reason if core.record is not None else ""
        self.anew.append(reason)
        holders = self._holders_of_a_step(core.world.ranks)
        if set(self.sim.struck) & {"partition", "split", "both", "manager", "usurp", "drain", "node", "agent"}:
            return  # a process may hold a state that the manager rightly does not know of
        for claim in ("is left to give its state", "no rank holds a consistent state", "no step is held"):
            demand(claim not in reason or not holders, "all start anew ({}), but {} hold their state", reason, holders)

        if "no step is held" in reason or "no rank holds" in reason:
            copied = self._copied_steps(core.world.ranks)
            demand(not copied, "all start anew ({}), but there are copies of step {}", reason, copied)

    def _copied_steps(self, ranks: Collection[int]) -> set[int]:
        """Return the steps of which, for every replica set, a waiting process of these ranks can read a copy."""
        steps: dict[str, set[int]] = {key: set() for key in self._chains}
        for process in self._living(ranks):
            if process.worker.state is WorkerState.PAUSED:
                for copy in process.agent.shelf.known(process.rank):
                    steps[self.sim.replicas_of(copy.of)].add(copy.step)
        return set.intersection(*steps.values())

    def _holders_of_a_step(self, ranks: Collection[int]) -> list[str]:
        """Return the processes that hold a state, if one of each replica set has or can reach the same step.

        A newcomer counts only after a while: the report that it received its state may still be on its way.
        """
        since_s = self.sim.clock.now_s - LONGEST_SILENCE_S
        known = [p.rank for p in self._whole(ranks) if not p.joins or p.restored_s < since_s]
        return [p.name for p in self._whole(known)] if self._common_steps(known, sets=self._chains) else []

    def _whole(self, ranks: Collection[int]) -> list[Process]:
        return [p for p in self._living(ranks) if p.condition in (Condition.CLEAN, Condition.STEPPED)]

    def _common_steps(self, ranks: Collection[int], *, sets: Collection[str] = ()) -> set[int]:
        """Return the steps that a process of every replica set of these ranks has or can reach."""
        reached: dict[str, set[int]] = {key: set() for key in sets or map(self.sim.replicas_of, ranks)}
        for process in self._whole(ranks):
            reached[process.replicas].add(process.step + (process.condition is Condition.STEPPED))
        return set.intersection(*reached.values())

    def recovered(self, record: FaultRecord) -> None:
        times = [
            record.detected_s,
            record.milestones.paused_s,
            record.milestones.planned_s,
            record.milestones.joined_s,
            record.milestones.restored_s,
            record.milestones.resumed_s,
        ]
        known = [time for time in times if time is not None]
        demand(known == sorted(known), "milestones out of order: {}", record)
        demand(record.decision.restart or None not in times, "a milestone is missing: {}", record)

    def _living(self, ranks: Collection[int]) -> list[Process]:
        """Return the processes of these ranks, at the holders of their places, that the manager can know of."""
        sim, per_node = self.sim, self.sim.policy.ranks_per_node
        holders = sim.manager.core.world.nodes.holders
        found = []
        for rank in ranks:
            agent = sim.by_name.get(holders.get(NodeRank(rank // per_node), ""))
            if agent is not None and not agent.dead and sim.network.connected(agent.machine, sim.manager.machine):
                found += [p for p in (agent.processes.get(rank),) if p is not None and p.alive and not p.hung]
        return found


def _newness(directive: Directive) -> tuple[int, int, int]:
    return directive.ledger.term, directive.generation, directive.sequence
