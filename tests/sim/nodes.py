"""The simulated runtimes: one agent per node with `core.agent`, and the manager with `core.recovery`."""

from typing import TYPE_CHECKING, assert_never

from taskd.core.agent import Action as NodeAction
from taskd.core.agent import Evict, Fence, Node, Start, StopNode, Take, TellJoin, TellPause, TellRelease
from taskd.core.recovery import Action, AskCluster, AskKernel, Note, Publish, Recovered, Recovery, Stopped, Superseded
from taskd.core.worker import Report
from taskd.wire.messages import Directive, Join, NodeStatus, Pause, RankStatus, Release, Stage, WorkerReport
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import Sim


class Agent:
    """One node."""

    def __init__(self, sim: "Sim", node_rank: int, ranks: range) -> None:
        self.sim = sim
        self.node_rank = node_rank
        self.name = f"agent {node_rank}"
        self.ranks = ranks
        self.node = Node()
        self.processes: dict[int, Process] = {}
        self.dead = False
        self.stopped = False
        self.leaving = False
        self._waiting: dict[int, Start] = {}
        self._standbys = sim.scenario.standbys
        self._lag_s = sim.scenario.lag_s[node_rank]
        self._sequence = 0

    def begin(self) -> None:
        """Start the ranks of the first world, and the heart."""
        for rank in self.ranks:
            self._launch(rank, incarnation=0, generation=0, joins=False, warm=False)
        self._beat()

    @property
    def done(self) -> bool:
        """All ranks of this node have exited with status 0: torchrun ends."""
        return all(slot.status.stage is Stage.EXITED for slot in self.node.slots.values())

    # ---- what comes in

    def receive(self, directive: Directive) -> None:
        """A message of the manager."""
        self.sim.clock.after(self._lag_s, self._obey, directive)

    def link(self, process: Process, report: Report) -> None:
        """A message of a process, on a link that keeps the order."""
        self.sim.clock.after(self._lag_s + 0.0005, self._hear, process, report)

    def notice_end(self, process: Process, *, clean: bool, cause: str) -> None:
        """A process has ended: known soon, and the cause a little later."""
        self.sim.clock.after(self._lag_s + 0.0003, self._ended, process, clean, cause if clean else "")
        if not clean:
            self.sim.clock.after(self._lag_s + 0.010, self._ended, process, clean, cause)

    def _obey(self, directive: Directive) -> None:
        if self.dead or self.stopped:
            return
        known = self.node.generation
        actions = self.node.obey(directive)
        self.sim.judge.obeyed(self.node_rank, directive, known, actions)
        self._perform(actions)

    def _hear(self, process: Process, report: Report) -> None:
        if self.dead or self.processes[process.rank] is not process:
            return
        self._perform(
            self.node.report(
                process.rank,
                WorkerReport(
                    generation=report.generation,
                    stage=report.stage,
                    step=report.step,
                    condition=report.condition,
                    cause=report.cause,
                    at_s=self.sim.clock.now_s,
                ),
            )
        )
        self._send()

    def _ended(self, process: Process, clean: bool, cause: str) -> None:
        if self.dead or self.processes[process.rank] is not process:
            return
        self._perform(self.node.ended(process.rank, clean=clean, cause=cause, at_s=self.sim.clock.now_s))
        self._send()

    def _connected(self, process: Process) -> None:
        if not self.dead and self.processes[process.rank] is process:
            self._perform(self.node.connected(process.rank))

    # ---- what is done

    def _perform(self, actions: list[NodeAction]) -> None:
        for action in actions:
            match action:
                case Fence():
                    process = self.processes[action.rank]
                    self.sim.clock.after(0.002, lambda p=process: p.end(clean=False, cause="signal 9 (SIGKILL)"))
                case Start():
                    self._start(action)
                case TellPause():
                    self._tell(action.rank, Pause(generation=action.generation, reason=action.reason))
                case TellJoin():
                    self._tell(action.rank, Join(plan=action.plan))
                case TellRelease():
                    self._tell(action.rank, Release(generation=action.generation))
                case StopNode():
                    self._stop()
                case Evict() | Take():
                    raise AssertionError("no place changes its holder here")
                case _:
                    assert_never(action)

    def _tell(self, rank: int, message: Pause | Join | Release) -> None:
        self.sim.clock.after(self._lag_s + 0.0005, self.processes[rank].hear, message)

    def _start(self, start: Start) -> None:
        """A process takes its time to start; a newer order takes the place of one that waits."""
        if self.leaving:
            return
        self.sim.judge.wanted(self, start)
        on_its_way = start.rank in self._waiting
        self._waiting[start.rank] = start
        if on_its_way:
            return
        warm = self._standbys > 0
        self._standbys -= warm
        self.sim.clock.after(0.02 if warm else self.sim.rng.uniform(0.5, 4.0), self._carry_out, start.rank, warm)
        if warm:
            self.sim.clock.after(1.0, self._refill)

    def _refill(self) -> None:
        self._standbys += 1

    def _carry_out(self, rank: int, warm: bool) -> None:
        start = self._waiting.pop(rank)
        if self.dead or self.stopped:
            return
        self._launch(rank, start.incarnation, start.generation, joins=start.joins, warm=warm)
        self._send()

    def _launch(self, rank: int, incarnation: int, generation: int, *, joins: bool, warm: bool) -> None:
        process = Process(self.sim, rank, incarnation, generation, joins=joins)
        self.sim.judge.started(process, self.processes.get(rank))
        self.processes[rank] = process
        self.node.started(
            RankStatus(
                rank=rank,
                incarnation=incarnation,
                generation=generation,
                stage=Stage.STARTING,
                pid=process.pid,
                warm=warm,
                at_s=self.sim.clock.now_s,
            )
        )
        process.start()
        self.sim.clock.after(0.01, self._connected, process)

    def _stop(self) -> None:
        self.sim.clock.note(self.name, "stops its processes")
        self.stopped = True
        for process in self.processes.values():
            process.end(clean=False, cause="signal 15 (SIGTERM)")

    def leave(self) -> None:
        """torchrun was told to end."""
        self.leaving = self.stopped = True
        for process in self.processes.values():
            process.end(clean=False, cause="signal 15 (SIGTERM)")
        self._send()

    def die(self) -> None:
        """The whole node is gone."""
        for process in self.processes.values():
            process.end(clean=False, cause="node")
        self.dead = True

    # ---- what goes out

    def _beat(self) -> None:
        if not self.dead:
            self.leaving = self.leaving or self.done
            self._send()
            self.sim.clock.after(self.sim.policy.membership.heartbeat_s, self._beat)

    def _send(self) -> None:
        self._sequence += 1
        status = NodeStatus(
            job_id="sim",
            node_rank=self.node_rank,
            agent_id=self.name,
            sequence=self._sequence,
            node_count=self.sim.policy.node_count,
            ranks=tuple(slot.status for slot in self.node.slots.values()),
            store_host="127.0.0.1",
            store_port=29500,
            standbys=self._standbys,
            max_restarts=self.sim.scenario.start_max_restarts,
            generation=self.node.generation,
            sent_s=self.sim.clock.now_s,
            leaving=self.leaving,
        )
        self.sim.network.send(self.node_rank, True, self.sim.manager.receive, status)


class Manager:
    """The manager of the job, or one after the other."""

    TICK_S = 0.2

    def __init__(self, sim: "Sim") -> None:
        self.sim = sim
        self.core = Recovery(sim.policy)
        self.directive: Directive | None = None
        self.away = False
        self.stopped: Stopped | None = None
        self.successes = 0

    def begin(self) -> None:
        """Let time pass."""
        if not self.away:
            self._perform(self.core.tick(self.sim.clock.now_s))
        self.sim.clock.after(self.TICK_S, self.begin)

    def receive(self, status: NodeStatus) -> None:
        """A message of an agent."""
        if self.away:
            return
        known, before = self.core.world.generation, self.directive
        stale = self.sim.judge.stale(self.core, status)
        actions = self.core.hear(status, self.sim.clock.now_s)
        if stale:
            self.sim.judge.heard_stale(status, known, actions)
        self._perform(actions)
        if self.directive is before and before is not None:
            self._send(status.node_rank, before)

    def restart(self, away_s: float) -> None:
        """The manager is gone, and another one comes that knows nothing."""
        if not self.away and self.stopped is None:
            self.away = True
            self.sim.clock.after(away_s, self._come_back)

    def _come_back(self) -> None:
        self.core = Recovery(self.sim.policy, sequence=int(self.sim.clock.now_s * 1000))
        self.directive = None
        self.away = False
        self.sim.judge.new_manager()
        self.sim.clock.note("manager", "is a new one")

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish():
                    self._publish(action.directive)
                case Recovered():
                    self.successes += 1
                    self.sim.clock.note("manager", "recovered: {}", action.record.phases_ms())
                    self.sim.judge.recovered(action.record)
                case Stopped():
                    self.stopped = action
                    self.sim.clock.note("manager", "stops the job ({}): {}", action.exit_code, action.reason)
                case Note() | AskKernel() | AskCluster() | Superseded():
                    pass
                case _:
                    assert_never(action)
        if actions:
            self.sim.struck_by(self.core.phase)

    def _publish(self, directive: Directive) -> None:
        self.sim.clock.note(
            "manager",
            "publishes {} generation {} to {} ({})",
            directive.order.value,
            directive.generation,
            [order.incarnation for order in directive.ranks],
            directive.reason,
        )
        self.sim.judge.published(self.core, directive)
        self.directive = directive
        for node_rank in range(self.sim.policy.node_count):
            self._send(node_rank, directive)

    def _send(self, node_rank: int, directive: Directive) -> None:
        self.sim.network.send(node_rank, False, self.sim.agents[node_rank].receive, directive)
