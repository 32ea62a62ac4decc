"""One simulated process of a rank: the script in its main thread, `core.worker` in its control thread.

The training state is a chain of hashes: state(N + 1) = H(state(N), N + 1). Its start differs between replica sets. A
torn state is None.
"""

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING, Any, Final

from taskd.core.agent import Start
from taskd.core.diagnosis import evidence as seen
from taskd.core.diagnosis.evidence import Evidence, RunState, Standing
from taskd.core.worker import Break, GiveUp, Input, Report, Wake, Worker, WorkerEvent, WorkerState
from taskd.wire.messages import Abandon, Condition, Join, Pause, Release, WorldPlan
from tests.sim.chain import InterruptedStepError, StrayError, chain, update
from tests.sim.copies import UNKNOWN, load_saved
from tests.sim.fabric import TIMEOUT_S, CollectiveError, Group, Ticket
from tests.sim.thread import ABANDONED, AWAIT_ORDER, Abandoned, Meet, Thread, Wanted

if TYPE_CHECKING:
    from tests.sim.nodes import Agent

_CUT_OFF: Final = "RuntimeError: Connection closed by peer"
"""Text of a failed collective in gloo."""


class Process:
    """Process that holds a rank, from its start to its end."""

    def __init__(self, agent: "Agent", start: Start) -> None:
        self.sim = sim = agent.sim
        self.agent = agent
        self.machine = agent.machine
        self.members = agent.members()
        """Ranks of its world."""
        self.rank = start.rank
        self.incarnation = start.incarnation
        self.term = start.term
        self.pid = sim.next_pid()
        self.name = f"rank {start.rank}.{start.incarnation}"
        self.alive = True
        self.worker = Worker(generation=start.generation, joins=start.joins)
        self.joins = start.joins
        self.rng: Random = sim.rng
        self.step = 0
        self.stepped_s = sim.clock.now_s
        """Time of the last commit, or of the start of training."""
        self.trains = False
        self.replicas = sim.replicas_of(start.rank)
        self.row = sim.row_of(start.rank, whole=start.joins or len(self.members) == len(sim.everybody))
        self.state: int | None = chain(0, self.replicas)
        self.condition = Condition.EMPTY if start.joins else Condition.CLEAN
        self.call = 0
        self.entered = UNKNOWN
        """Step at which it entered the resilient function or its world. It knows only of later checkpoints."""
        self.inside = False
        self.broken = self.hung = self.frozen = False
        self.pending_error: str | None = None
        self.group: Group | None = None
        self.held = -1  # for the judge: the step that it last loaded, restored or committed
        self._ticket: Ticket | None = None
        self._orders: list[WorldPlan | Abandoned | None] = []
        self.old_link_until_s = 0.0
        """Time until which its agent uses a link that the process has lost."""
        self.restored_s = 0.0
        """Time at which it last received the state of another process."""
        self.late_s = 0.0
        """Delay after which it receives the messages of that link."""
        self._awaiting = False
        self._thread: Thread = self._main()

    # ---- the scheduler of the main thread

    def start(self) -> None:
        """Run until the first wait."""
        if not self.joins:
            self.agent.shelf.forget(self.rank)
        self._go(None)

    def resume(self, ticket: Ticket, result: Any) -> None:
        """Continue after a collective has ended."""
        if self._ticket is ticket:
            self._ticket = None
            self._go(result)

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """Continue after a collective has failed."""
        if self._ticket is ticket:
            self._ticket = None
            self._go(error)

    def _go(self, given: Any) -> None:
        if not self.alive or self.hung:
            return
        try:
            wanted = self._thread.throw(given) if isinstance(given, Exception) else self._thread.send(given)
        except StopIteration:
            self.end(clean=True, cause="exit code 0")
            return
        except (CollectiveError, StrayError) as error:
            self.sim.clock.note(self.name, "dies of {}", error)
            self.end(clean=False, cause="exit code 1")
            return
        if isinstance(wanted, float):
            self.sim.clock.after(wanted, self._go, None)
        elif isinstance(wanted, Meet):
            self._meet(wanted)
        else:
            self._awaiting = True
            self._hand_over()

    def _meet(self, meet: Meet) -> None:
        if self.broken:
            ticket = self._ticket = Ticket(self, None, deaf=False)
            self.sim.clock.after(0.0002, self.fail, ticket, CollectiveError("broken"))
            return
        self.group = meet.group
        check = self.sim.judge.checks(meet.group.generation, meet.key)
        self._ticket = self.sim.fabric.arrive(meet.group, meet.key, self, meet.among, meet.payload, check)
        if meet.timeout_s:
            self.sim.clock.after(meet.timeout_s, self.sim.fabric.expire, meet.group, self._ticket)

    def _hand_over(self) -> None:
        if self._awaiting and self._orders:
            self._awaiting = False
            self._go(self._orders.pop(0))

    def evidence(self) -> Evidence:
        """Return the evidence of this process, as far as it runs a script with the SDK."""
        state = RunState.STOPPED if self.hung else RunState.SLEEPING
        standing = Standing.TRAINING if self.trains else Standing.PAUSED
        still = seen.Stillness(window_s=1.0, main="a lock, with a time limit")
        process, position = seen.Process(self.pid, state, still=still), seen.RankPosition(self.step, standing=standing)
        return Evidence(process=process, position=position)

    # ---- its end

    def end(self, *, clean: bool, cause: str) -> None:
        """End the process abruptly."""
        if not self.alive:
            return
        self.alive = False
        self.sim.clock.note(self.name, "ends: {}", cause)
        if self.group is not None:
            self.sim.fabric.leave(self.group, self)
        self.agent.notice_end(self, clean=clean, cause=cause)

    # ---- the control thread

    def hear(self, message: Pause | Join | Release | Abandon) -> None:
        """Receive an order of the agent."""
        if not self.alive or self.frozen:
            return
        match message:
            case Pause():
                given = Input(WorkerEvent.PAUSE, message.generation, cause=message.reason, at_commit=message.at_commit)
            case Join():
                given = Input(WorkerEvent.JOIN, plan=message.plan)
            case Release():
                given = Input(WorkerEvent.RELEASE, message.generation, sequence=message.sequence)
            case Abandon():
                given = Input(WorkerEvent.ABANDON, cause=message.reason)
        before = (self.worker.state, self.worker.generation, self.worker.pause_generation)
        acted = self.feed(given)
        after = (self.worker.state, self.worker.generation, self.worker.pause_generation)
        if not isinstance(message, Abandon):
            self.sim.judge.heard(self, message, changed=acted or before != after)

    def feed(self, given: Input) -> bool:
        """Feed the machine and perform its actions. Return whether there were any."""
        actions = self.worker.feed(given)
        for action in actions:
            match action:
                case Report():
                    if action.stage.value == "paused":
                        self._orders.clear()
                    self.sim.clock.note(
                        self.name,
                        "reports {} {} step {} {}",
                        action.stage.value,
                        action.generation,
                        action.step,
                        action.condition.value,
                    )
                    self.agent.link(self, action)
                    self.sim.reached(action.stage)
                case Break.BREAK:
                    self._break()
                case Break.MEND:
                    self.broken = False
                case Wake():
                    self._orders.append(action.plan)
                    self.sim.clock.after(0.0001, self._hand_over)
                case GiveUp():
                    self._orders.append(ABANDONED)
                    self.sim.clock.after(0.0001, self._hand_over)
        return bool(actions)

    def _break(self) -> None:
        self.broken = True
        if self.group is not None:
            self.sim.fabric.leave(self.group, self)
        if self._ticket is not None:
            self.sim.clock.after(0.001, self.fail, self._ticket, CollectiveError("broken"))

    # ---- the main thread

    def _main(self) -> Thread:
        script, uniform = self.sim.script, self.rng.uniform
        yield uniform(0.5, 1.5) * script.setup_s
        if self.joins and self.sim.needs_all:
            raise StrayError("found 1 rank")
        if not self.joins:
            alone = self.agent.name if self.agent.alone and self.incarnation == 0 else None
            self.group = self.sim.fabric.group(self.worker.generation, alone or self.term)
            checkpoints = yield Meet(self.group, "init", self.members, self.sim.checkpoint, TIMEOUT_S)
            self._load(min(checkpoints.values()))
            yield uniform(0.0, 0.3)
        self._warm_up()
        if script.cooperative:
            for call, bound in enumerate(script.bounds):
                yield from self._resilient(call, bound)
                self._warm_up()
                yield uniform(0.5, 1.5) * script.between_s
        else:
            yield from self._train(script.bounds[-1])
            yield uniform(0.5, 1.5) * script.between_s
        self.sim.judge.completed(self)

    def _warm_up(self) -> None:
        """Commit a step outside of the training."""
        if self.sim.scenario.warms_up and self.sim.script.cooperative:
            self.feed(Input(WorkerEvent.COMMITTED, step=self.step, condition=self.condition))

    def _dawdle(self) -> Thread:
        """Delay the result of a collective."""
        if self.sim.scenario.dawdles:
            yield self.rng.uniform(0.0, 0.01)

    def _load(self, step: int) -> None:
        self.step, self.state = step, chain(step, self.replicas)
        self.sim.judge.loaded(self)

    def _resilient(self, call: int, bound: int) -> Thread:
        """Run the SDK's wrapper. A newcomer skips the calls that its donor had already left."""
        if self.call > call:
            return
        self.call = call
        plan = yield from self._enter()
        while True:
            failed = False
            try:
                if plan is not None:
                    yield from self._join(plan)
                    if self.call > call:
                        return
                self.trains, self.stepped_s = plan is None or not plan.dump, self.sim.clock.now_s
                yield from self._train(bound) if plan is None or not plan.dump else self._dump(plan)
                self.trains = False
                if plan is None or not plan.dump:
                    yield 0.002
                    yield from self._dawdle()
                    self.feed(Input(WorkerEvent.RETURNED, step=self.step, condition=self.condition))
            except (CollectiveError, StrayError, InterruptedStepError) as error:
                self.broken, self.trains, failed = True, False, True
                if self.group is not None:
                    self.sim.fabric.leave(self.group, self)
                cause = _CUT_OFF if isinstance(error, CollectiveError) else type(error).__name__
                self.feed(Input(WorkerEvent.RAISED, step=self.step, condition=self.condition, cause=cause))
            plan = yield AWAIT_ORDER
            if isinstance(plan, Abandoned) and failed:
                raise StrayError("abandoned")
            if plan is None or isinstance(plan, Abandoned):
                self.inside = False
                self.call = call + 1
                return

    def _enter(self) -> Generator[Wanted, Any, WorldPlan | None]:
        """Enter a resilient function. Return the plan of the world to train in, or None if that is the present one."""
        plan: WorldPlan | Abandoned | None = None
        if not self.inside:
            if not self.worker.joins:
                self.agent.shelf.forget(self.rank)
                self.entered = self.step
            self.feed(Input(WorkerEvent.ENTER, step=self.step, condition=self.condition))
            if self.worker.state is WorkerState.PAUSED:
                plan = yield AWAIT_ORDER
        if isinstance(plan, Abandoned):
            raise StrayError("abandoned")
        self.inside = True
        return plan

    def _train(self, bound: int) -> Thread:
        uniform, length_s = self.rng.uniform, self.sim.script.step_s
        while self.step < bound:
            yield uniform(0.5, 1.5) * length_s
            self._maybe_raise("stray")
            assert self.group is not None
            yield Meet(self.group, ("step", self.step + 1), self.members, (self.step, self.state))
            old, self.state, self.condition = self.state, None, Condition.TORN
            yield 0.001
            self._maybe_raise("tear")
            assert old is not None
            self.state, self.condition = update(old, self.step + 1), Condition.STEPPED
            yield 0.001
            self._maybe_raise("late stray")
            self.step, self.condition, self.stepped_s = self.step + 1, Condition.CLEAN, self.sim.clock.now_s
            self.sim.judge.committed(self)
            if self.sim.script.cooperative:
                self.sim.copies.committed(self)
                self.feed(Input(WorkerEvent.COMMITTED, step=self.step, condition=self.condition))
                if self.worker.interrupted:
                    raise InterruptedStepError

    def _maybe_raise(self, kind: str) -> None:
        if self.pending_error == kind:
            self.pending_error = None
            raise StrayError(kind)

    def _join(self, plan: WorldPlan) -> Thread:
        self.group = self.sim.fabric.group(plan.generation)
        self.members = members = plan.ranks
        yield self.rng.uniform(0.001, 0.05)
        yield Meet(self.group, "rebuild", members, timeout_s=plan.timeout_s)
        yield from self._dawdle()
        self.feed(Input(WorkerEvent.JOINED, step=self.step, condition=self.condition))
        if members.index(self.rank) in plan.adopt:
            self.sim.judge.adopts(self, plan)
            self.step, self.condition = plan.target_step, Condition.CLEAN
            self.sim.judge.committed(self, adopted=True)
        for load in plan.loads:
            yield from self._load_copy(members[load.receiver], members[load.holder], load.of, plan)
        for transfer in plan.transfers:
            donor, receivers = members[transfer.donor], [members[receiver] for receiver in transfer.receivers]
            lane = ("restore", donor)  # several transfers do not wait for each other
            if self.rank == donor:
                yield Meet(self.group, lane, (donor, *receivers), (self.step, self.state, self.call))
            elif self.rank in receivers:
                self.state, self.condition = None, Condition.TORN
                yield self.rng.uniform(0.001, 0.2)
                given = yield Meet(self.group, lane, (donor, *receivers))
                self.step, self.state, self.call = given[donor]
                self.condition = Condition.CLEAN
        if plan.saved:
            yield from load_saved(self, plan)
        self.agent.shelf.forget(self.rank, after=plan.target_step)
        self.sim.copies.kept[plan.generation] = plan.copied
        self.sim.judge.restored(self, plan)
        self.restored_s, self.entered = self.sim.clock.now_s, min(self.entered, self.step)
        yield self.rng.uniform(0.0, 0.01)
        self.feed(Input(WorkerEvent.RESTORED, step=self.step, condition=Condition.CLEAN))

    def _load_copy(self, receiver: int, holder: int, of: int, plan: WorldPlan) -> Thread:
        assert self.group is not None
        lane, read = ("load", receiver), self.agent.shelf.read
        if self.rank == receiver:
            self.state, self.condition = None, Condition.TORN
            yield self.rng.uniform(0.001, 0.2)
        if self.rank == holder != receiver:
            yield Meet(self.group, lane, (receiver, holder), read(holder, of, plan.target_step))
        elif self.rank == receiver:
            given = (yield Meet(self.group, lane, (receiver, holder))) if holder != receiver else {}
            self.state, self.call = given[holder] if given else read(holder, of, plan.target_step)
            self.step, self.condition = plan.target_step, Condition.CLEAN

    def _dump(self, plan: WorldPlan) -> Thread:
        """Write a checkpoint together with the others. The process then waits for the end as after the last step."""
        assert self.group is not None
        yield self.rng.uniform(0.01, self.sim.scenario.dump_s)
        yield Meet(self.group, "dump", self.members)
        yield from self._dawdle()
        self.sim.judge.dumped(self, plan)
        self.feed(Input(WorkerEvent.DUMPED, step=self.step, condition=self.condition))
