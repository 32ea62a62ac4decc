"""The nodes of a job, played against the real core (`taskd.core.recovery`) on virtual time.

Rules:

1. The core decides. It gets the nodes' reports and the passing of time, and the nodes obey its directives.
2. The work of a directive takes the times of `trace_times.py`. All survivors take the same time, that of the slowest.
3. A step that was under way when the world broke is lost. Training continues when every node has its state.
4. Heartbeats are sent only while time passes for the core, that is, while something is wrong.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.trace_meter import TRAIN, WAIT_NODE, Meter
from benchmarks.trace_nodes import Clock, Node
from benchmarks.trace_times import Times
from taskd.core.policy import Policy
from taskd.core.recovery import Action, AskCluster, AskKernel, JobEnded, Phase, Publish, Recovered, Recovery
from taskd.wire.messages import Directive, Order, Stage

KERNEL_S = 0.3
"""Wait for a kernel that does not answer, in seconds (`taskd/runtime/manager/kernels.py`)."""
FIRST = Directive(job_id="trace", sequence=-1, generation=0, order=Order.FORM)
_COLUMN = {
    Phase.PAUSING: "replace",
    Phase.JOINING: "rebuild",
    Phase.RESUMING: "first_step",
    Phase.RESTARTING: "restart",
}


class Play(ABC):
    """The nodes of one job and its manager's core. The policy may have fewer places than the job of the times."""

    def __init__(self, policy: Policy, times: Times, meter: Meter, spares: int) -> None:
        self.policy, self.times, self.meter = policy, times, meter
        self.clock = Clock()
        self.outcomes: Counter[str] = Counter()
        """Number of recoveries by strategy, and of ends of the job."""
        self._spares: dict[str, Node] = {}
        self._buggy: set[int] = set()
        """Places whose next step ends their process, on any node."""
        self._named = self._sequence = self._epoch = 0
        self._down = self._cause = ""
        self._flowing = self._anew = False
        self.holders = {place: self._new_node(place) for place in range(policy.node_count)}
        for _ in range(spares):
            self._add_spare()
        self.core = Recovery(policy)
        self.directive = FIRST

    # ---- to the core and back

    def _report(self, node: Node) -> None:
        self._sequence += 1
        status = node.status(self._sequence, self.directive, self.policy.node_count)
        self._perform(self.core.hear(status, self.clock.now_s))

    def _tick(self) -> None:
        """Let time pass for the core, with heartbeats; do nothing in quiet times."""
        if self.core.phase is Phase.RUNNING and not any(node.silent for node in self.holders.values()):
            return
        self._beat()
        self._perform(self.core.tick(self.clock.now_s))

    def _beat(self) -> None:
        """Send heartbeats of all nodes that are not silent. In quiet times none are sent: they would change nothing."""
        for node in [*self.holders.values(), *self._spares.values()]:
            if not node.silent:
                self._report(node)

    def _ticks(self, *delays_s: float) -> None:
        for delay_s in delays_s:
            self._later(delay_s + 0.001, self._tick)

    def _answer(self, agent_id: str) -> None:
        """Answer the core's probe of an agent: nothing listens on a silent node."""
        listening = not any(node.silent for node in self.holders.values() if node.agent_id == agent_id)
        self._perform(self.core.answered(agent_id, listening=listening, now_s=self.clock.now_s))

    def _perform(self, actions: list[Action]) -> None:
        epoch = self._epoch
        for action in actions:
            if self._epoch != epoch:
                return
            match action:
                case Publish():
                    self._obey(action.directive)
                case AskCluster():
                    self._later(self.times.cluster_s, self._add_spare, always=True)
                case AskKernel():
                    self._later(KERNEL_S, self._answer, action.agent_id)
                case Recovered():
                    again = " (all processes anew)" if action.record.decision.restart else ""
                    self.outcomes[action.record.decision.strategy.value + again] += 1
                    self._flowing = not self._blocked()
                case JobEnded():
                    self._stopped(action)
                case _:
                    pass
        self._book()

    # ---- reactions of the job

    @abstractmethod
    def _stopped(self, stopped: JobEnded) -> None:
        """React to the end of the job by the core."""

    @abstractmethod
    def _rescue(self, steps: int) -> None:
        """Help a job without progress: all processes were started anew at this step, a long time ago."""

    # ---- actions of the nodes

    def _obey(self, directive: Directive) -> None:
        if directive.order is Order.STOP:
            return
        self.directive = directive
        if directive.order is Order.FORM:
            return
        self._seat(directive)
        anew = self.core.phase is Phase.RESTARTING
        for order in directive.ranks:
            node = self.holders.get(order.rank)
            if node is not None and order.incarnation > node.wanted and not node.silent:
                self._launch(node, order.incarnation, anew)
        limits = self.policy.deadlines
        if directive.order is Order.PAUSE:
            self._break(self._cause or "a node comes back")
            self._later(self.times.pause_s + self.times.manager_s, self._pause, directive.generation)
            self._ticks(limits.pause_s, limits.replace_s, limits.wait_node_s)
        elif directive.order is Order.JOIN:
            self._after(self.times.rebuild_s, self._join)
            self._ticks(limits.join_s, limits.join_s + limits.resume_s)
        elif anew:
            self.meter.pass_to(self.clock.now_s)
            self.meter.roll_back(self.meter.checkpoint_kept_s, self._cause)
            self._flowing, self._anew = False, True
            self._ticks(limits.replace_s, limits.wait_node_s)
            self._later(self.times.manual_s, self._rescue, self.meter.steps)

    def _seat(self, directive: Directive) -> None:
        """Give places to their new holders. A node that has lost its place is repaired, and later becomes a spare."""
        seated: dict[int, str] = {place.node_rank: place.agent_id for place in directive.places}
        for place in [place for place, node in self.holders.items() if seated.get(place) != node.agent_id]:
            self.holders.pop(place).place = -1
            self._later(self.times.spare_back_s, self._add_spare, always=True)
        for place, agent_id in seated.items():
            if place not in self.holders and agent_id in self._spares:
                node = self._spares.pop(agent_id)
                node.place, node.wanted = place, -1
                self.holders[place] = node

    def _launch(self, node: Node, incarnation: int, anew: bool) -> None:
        node.start(incarnation, self.directive.generation)
        took_s = self.times.warm_s if node.warm else self.times.cold_s
        node.warm = False
        self._later(took_s + self.times.cold_s, setattr, node, "warm", True)
        if anew:  # for the core the job is restarted when all processes run; training begins after `restart_s`
            self._report(node)
        self._later(self.times.restart_s if anew and not node.broken else took_s, self._up, node, incarnation)

    def _up(self, node: Node, incarnation: int) -> None:
        """Let a new process reach the resilient function. On a broken node it dies instead."""
        if self.holders.get(node.place) is not node or node.wanted != incarnation or node.silent:
            return
        if node.broken:
            self._die(node, "signal 6 (SIGABRT)")
            return
        if self.directive.order is not Order.RUN:
            self._beat()  # the next world is built when most nodes have confirmed its directive
        node.running = True
        if self.directive.order is Order.RUN:
            node.reach(Stage.TRAINING, self.directive.generation, step=self.meter.steps)
            self._flowing = not self._blocked()
        else:
            node.reach(Stage.PAUSED, self.directive.generation)
        self._report(node)

    def _all(self, reach: Callable[[Node], None]) -> None:
        """Let every node that can do so reach a stage and report it, in reverse order: that is fastest for the core."""
        directive = self.directive
        for node in reversed(self._members()):
            if self.directive.sequence != directive.sequence or self._down:
                return
            if node.running and not node.silent and not node.hung and not node.stuck:
                reach(node)
                self._report(node)

    def _pause(self, generation: int) -> None:
        if self.directive.order is Order.PAUSE and self.directive.generation == generation:
            self._all(lambda node: node.reach(Stage.PAUSED, generation, step=self._step_of(node)))

    def _step_of(self, node: Node) -> int | None:
        return self.meter.steps if node.step >= 0 else None  # a newcomer that waits holds no state

    def _blocked(self) -> bool:
        return any(node.stuck or not node.running for node in self._members())

    def _members(self) -> list[Node]:
        """Return the nodes of the present world, in its order."""
        return [self.holders[order.rank] for order in self.directive.ranks if order.rank in self.holders]

    def _join(self) -> None:
        if not self._blocked():
            self._all(lambda node: node.reach(Stage.JOINED, self.directive.generation))
            plan = self.directive.plan
            self._after(self.times.restore_s if plan is not None and plan.transfers else 0.0, self._restore)

    def _restore(self) -> None:
        if self._blocked() or self.directive.plan is None:
            return
        if self.directive.plan.dump:
            self._after(self.times.checkpoint_write_s, self._finish, Stage.DUMPED)
            return
        self._all(lambda node: node.reach(Stage.RESTORED, self.directive.generation, step=self.meter.steps))
        self._after(self.times.first_step_s, self._train)

    def _train(self) -> None:
        """Begin the first step of the new world."""
        if self._blocked():
            return
        self._flowing = True
        self._book()
        self._after(self.times.step_s / (self._speed() * self.meter.share_of_training), self._finish, Stage.COMMITTED)

    def _finish(self, stage: Stage) -> None:
        if self._blocked():
            return
        buggy = next((node for node in self._members() if node.place in self._buggy), None)
        if buggy is not None:  # it dies inside the step, which is not committed
            self.meter.pass_to(self.clock.now_s)
            self.meter.lose_to(self.meter.step_kept_s - self.times.step_s, self._cause)
            self._break(self._cause)
            self._die(buggy, "exit code 1")
            return
        self.meter.pass_to(self.clock.now_s)
        self._all(lambda node: node.reach(stage, self.directive.generation, step=self.meter.steps))

    def _break(self, cause: str) -> None:
        """Stop training. The step that was under way is lost."""
        if self._flowing:
            self.meter.lose_to(self.meter.step_kept_s, cause)
        self._flowing, self._cause = False, cause

    def _die(self, node: Node, cause: str) -> None:
        self._beat()  # the core's next decision depends on the other nodes
        node.running = False
        node.reach(Stage.DEAD, self.directive.generation, cause=cause)
        self._report(node)

    def _new_node(self, place: int = -1) -> Node:
        """Return a node; for a place, one of the spares if there is one."""
        if place >= 0 and self._spares:
            node = self._spares.pop(next(iter(self._spares)))
            node.place = place
            return node
        self._named += 1
        return Node(f"node{self._named}", place)

    def _add_spare(self) -> None:
        node = self._new_node()
        self._spares[node.agent_id] = node
        if not self._down and self._epoch:
            self._beat()

    # ---- time

    def _later(self, delay_s: float, act: Callable[..., object], *args: Any, always: bool = False) -> None:
        """Schedule an action. Without `always`, it is dropped if the job was stopped or started anew meanwhile."""
        self.clock.at(self.clock.now_s + delay_s, self._if_alive, None if always else self._epoch, act, args)

    def _if_alive(self, epoch: int | None, act: Callable[..., object], args: tuple[Any, ...]) -> None:
        if epoch is None or epoch == self._epoch:
            act(*args)

    def _after(self, delay_s: float, act: Callable[..., object], *args: Any) -> None:
        """Schedule an action that is dropped if the directive is another one by then."""
        self._later(delay_s, self._if_current, self.directive.sequence, act, args)

    def _if_current(self, sequence: int, act: Callable[..., object], args: tuple[Any, ...]) -> None:
        if sequence == self.directive.sequence:
            act(*args)

    def _speed(self) -> float:
        """Return the share of full speed. Each absent place takes one whole replica out of training."""
        absent = self.policy.node_count - len(self.core.world.places)
        return max(0.0, 1 - absent / self.times.replicas)

    def _book(self) -> None:
        """Book the time from now on under the column of the job's present phase."""
        phase = self.core.phase
        if self._down:
            mode = self._down
        elif self._flowing and phase in (Phase.RUNNING, Phase.RESUMING):
            self._anew = False
            mode, self._cause = TRAIN, self._cause if phase is Phase.RESUMING else ""
        elif phase in (Phase.PAUSING, Phase.RESTARTING) and self.core.world.vacant:
            mode = WAIT_NODE
        elif phase is Phase.RUNNING and self._anew:
            mode = "restart"
        else:
            mode = _COLUMN.get(phase, "detect")
        self.meter.switch(self.clock.now_s, mode, self._cause, self._speed() if mode == TRAIN else 1.0)
