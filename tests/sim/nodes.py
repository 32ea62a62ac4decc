"""Simulated agent: one node with `core.agent` and its processes, with a place of the job or without one."""

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace
from typing_extensions import assert_never

from taskd.core.agent import Action, Evict, Fence, Node, Start, StopNode, Take, TellJoin, TellPause, TellRelease
from taskd.core.membership.shorthand import Shorthand
from taskd.core.worker import Report
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import (
    Abandon,
    Directive,
    Heard,
    Join,
    NodeStatus,
    Pause,
    Progress,
    RankStatus,
    Refuses,
    Release,
    Stage,
    WorkerReport,
)
from tests.core.driver import status_of
from tests.sim.copies import Shelf, saved
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import Sim

EVICTION_S = 0.05
"""Delay after its processes were killed until an agent may take another place, in seconds."""
TORCHRUN_ENDS_S = 3.0
"""Time that agents remain after the stop of the job, in seconds."""


class Agent:
    """One node. `alone`: its launcher starts the ranks of a new job, although the job exists already."""

    def __init__(self, sim: "Sim", number: int, place: NodeRank | None, wants: int, *, alone: bool = False) -> None:
        self.sim = sim
        self.machine = number
        self.name = f"agent {number}"
        self.node = Node(agent_id=self.name, place=place)
        self.processes: dict[int, Process] = {}
        self.shelf = Shelf()
        self.dead = False
        self.stopped = False
        self.leaving = False
        self.alone = alone
        self._wants = wants
        self._waiting: dict[int, Start] = {}
        self._standbys = sim.scenario.standbys
        self._lag_s = sim.scenario.lag_s[number % len(sim.scenario.lag_s)]
        self._sequence = 0
        self._said: dict[int, Shorthand] = {}
        self._answered: dict[int, int] = {}
        self._led_s = sim.clock.now_s
        """Time of the last message of a manager."""
        self.stock = False
        """True if no manager answers: torchrun then behaves as without taskd."""

    def begin(self) -> None:
        """Start the ranks of the first world, and the heartbeat."""
        if self.dead:
            return
        if self.node.place is not None:
            for rank in self.sim.ranks_of(self.node.place):
                self._launch(Start(JobRank(rank), 0, 0, joins=False), warm=False)
        self._beat()

    @property
    def done(self) -> bool:
        """Return whether all ranks of this node have exited with status 0. torchrun ends then."""
        slots = self.node.slots.values()
        return bool(slots) and all(slot.status.stage is Stage.EXITED for slot in slots)

    # ---- messages and events

    def receive(self, machine: int, message: Directive | Heard) -> None:
        """Receive a manager's message. Successive managers of one machine share one connection."""
        self._led_s = self.sim.clock.now_s
        directive = self._said.setdefault(machine, Shorthand()).hear(message)
        if directive is not None:
            if directive.probe not in (0, self._answered.get(machine)):
                self._answered[machine] = directive.probe
                self.sim.clock.after(self._lag_s + 0.05, self._report_evidence, machine, directive.probe)
            self.sim.clock.after(self._lag_s, self._obey, directive)

    def link(self, process: Process, report: Report) -> None:
        """Receive a process's message, on a link that keeps the order."""
        self.sim.clock.after(self._lag_s + 0.0005, self._hear, process, report)

    def notice_end(self, process: Process, *, clean: bool, cause: str) -> None:
        """Report a process's end: soon, with its status if it ended by itself. A status from outside follows later."""
        own = clean or cause.startswith("exit code")
        status = 0 if clean else status_of(cause)
        self.sim.clock.after(self._lag_s + 0.0003, self._ended, process, status if own else None, cause if own else "")
        if not clean:
            self.sim.clock.after(self._lag_s + 0.010, self._ended, process, status, cause)

    def _obey(self, directive: Directive) -> None:
        if self.dead or self.stopped:
            return
        self.stock = False
        known = self.node.directive
        actions = self.node.obey(directive)
        self.sim.judge.obeyed(self.name, directive, known, actions)
        self._perform(actions)

    def _hear(self, process: Process, report: Report) -> None:
        if self.dead or self.processes.get(process.rank) is not process:
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
                    replicas=process.replicas,
                    row=process.row,
                    backs_up=self.sim.scenario.backup_every > 0,
                    copies=self.shelf.known(process.rank) if report.stage is Stage.PAUSED else (),
                    saved=saved(process),
                ),
            )
        )
        self._send()
        if self.stock and report.stage in (Stage.PAUSED, Stage.FINISHED):
            self._tell(process.rank, Abandon(reason="no manager answers"))

    def _ended(self, process: Process, status: int | None, cause: str) -> None:
        if self.dead or self.processes.get(process.rank) is not process:
            return
        self._perform(self.node.ended(process.rank, status=status, cause=cause, at_s=self.sim.clock.now_s))
        self._send()
        if self.stock and not self.leaving and status != 0:
            self.sim.clock.note(self.name, "is given up by torchrun")
            self.sim.struck.append("term")
            self.leave()

    def refuse(self, process: Process, said: Refuses) -> None:
        """Record that a process cannot be recovered in place, or that it can again."""
        if process.alive and self.processes.get(process.rank) is process:
            self.node.refuses(process.rank, said)
            self._send()

    def unplug(self, process: Process, length_s: float) -> None:
        """Close a process's link, as its script does. The process makes a new link and receives older messages late."""
        now_s = self.sim.clock.now_s
        process.old_link_until_s, process.late_s = now_s + 0.05 * length_s, self.sim.rng.uniform(0.0, 2.0)
        self.sim.clock.after(0.05 * length_s, self._connected, process)

    def _connected(self, process: Process) -> None:
        if not self.dead and self.processes.get(process.rank) is process:
            self._perform(self.node.connected(process.rank))

    # ---- actions

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Fence():
                    process = self.processes.get(action.rank)
                    if process is not None:
                        self._kill(process)
                case Start():
                    self._start(action)
                case TellPause():
                    pause = Pause(generation=action.generation, reason=action.reason, at_commit=action.at_commit)
                    self._tell(action.rank, pause)
                case TellJoin():
                    self._tell(action.rank, Join(plan=action.plan))
                case TellRelease():
                    self._tell(action.rank, Release(generation=action.generation, sequence=action.sequence))
                case StopNode():
                    self._stop()
                case Evict():
                    self._evict()
                case Take():
                    self.sim.clock.after(EVICTION_S, self._occupy, action.place)
                case _:
                    assert_never(action)

    def _kill(self, process: Process) -> None:
        self.sim.clock.after(0.002, lambda: process.end(clean=False, cause="signal 9 (SIGKILL)"))

    def _evict(self) -> None:
        self.sim.clock.note(self.name, "is evicted")
        for process in self.processes.values():
            self._kill(process)
        self.processes.clear()
        self._waiting.clear()

    def _occupy(self, place: int) -> None:
        if self.dead or self.stopped or self.node.place != place or self.node.slots:
            return
        self.sim.clock.note(self.name, "takes place {}", place)
        self.shelf = Shelf()
        self._perform(self.node.occupy(tuple(map(JobRank, self.sim.ranks_of(place)))))

    def _tell(self, rank: int, message: Pause | Join | Release | Abandon) -> None:
        process = self.processes[rank]
        late_s = process.late_s if self.sim.clock.now_s < process.old_link_until_s else 0.0
        self.sim.clock.after(self._lag_s + 0.0005 + late_s, process.hear, message)

    def _start(self, start: Start) -> None:
        """Start a process after a delay. A newer order replaces one that still waits."""
        if self.leaving:
            return
        self.sim.judge.wanted(self, start)
        on_its_way = start.rank in self._waiting
        self._waiting[start.rank] = start
        if on_its_way:
            return
        warm = self._standbys > 0 and not start.cold
        self._standbys -= warm
        self.sim.clock.after(0.02 if warm else self.sim.rng.uniform(0.5, 4.0), self._carry_out, start.rank, warm)
        if warm:
            self.sim.clock.after(1.0, self._refill)

    def _refill(self) -> None:
        self._standbys += 1

    def _carry_out(self, rank: int, warm: bool) -> None:
        start = self._waiting.pop(rank, None)
        if start is None or self.dead or self.stopped:
            return
        self._launch(start, warm=warm)
        self._send()

    def _launch(self, start: Start, *, warm: bool) -> None:
        process = Process(self, start)
        self.sim.judge.started(process, self.processes.get(start.rank))
        self.processes[start.rank] = process
        self.node.started(
            RankStatus(
                rank=JobRank(start.rank),
                incarnation=start.incarnation,
                generation=start.generation,
                stage=Stage.STARTING,
                pid=process.pid,
                warm=warm,
                at_s=self.sim.clock.now_s,
                term=start.term,
            )
        )
        process.start()
        self.sim.clock.after(0.01, self._connected, process)

    def members(self) -> tuple[int, ...]:
        """Return the ranks of a world that starts from the beginning, as far as this node knows."""
        known = self.node.directive
        return tuple(order.rank for order in known.ranks) if known is not None else tuple(self.sim.everybody)

    def _stop(self) -> None:
        self.sim.clock.note(self.name, "stops its processes")
        self.stopped = True
        self.sim.clock.after(TORCHRUN_ENDS_S, self.die)
        for process in self.processes.values():
            process.end(clean=False, cause="signal 15 (SIGTERM)")

    def leave(self) -> None:
        """End the node's processes, because torchrun was ordered to end."""
        self.leaving = self.stopped = True
        for process in self.processes.values():
            process.end(clean=False, cause="signal 15 (SIGTERM)")
        self._send()

    def die(self) -> None:
        """Lose the whole node."""
        self.dead = True
        for process in self.processes.values():
            process.end(clean=False, cause="node")

    def die_alone(self) -> None:
        """End the agent's process alone; its workers notice."""
        self.dead = True
        for process in self.processes.values():
            length_s = self.sim.rng.uniform(0.0, 0.2)
            self.sim.clock.after(length_s, lambda it=process: it.end(clean=False, cause="its agent is gone"))

    # ---- reports

    def _beat(self) -> None:
        if not self.dead:
            self.leaving = self.leaving or self.done
            self._give_up_on_manager()
            self._send()
            self.sim.clock.after(self.sim.policy.membership.heartbeat_s, self._beat)

    def _give_up_on_manager(self) -> None:
        manager_timeout_s = self.sim.scenario.manager_timeout_s
        if (
            manager_timeout_s is not None
            and not self.stopped
            and self.sim.clock.now_s - self._led_s > manager_timeout_s
        ):
            self.stock = True

    def _report_evidence(self, machine: int, probe: int) -> None:
        """Report the present evidence of the node's processes."""
        manager = next(it for it in self.sim.managers if it.machine == machine)
        living = [process for process in self.processes.values() if process.alive]
        evidence = {process.rank: process.evidence() for process in living}
        if not (self.dead or manager.dead):
            self.sim.network.send(self, manager, True, partial(manager.evidence_report, self.name, probe), evidence)

    def _progress(self) -> Progress | None:
        """Return the progress of the rank that was the first to commit the newest step."""
        training = [process for process in self.processes.values() if process.trains]
        newest = max(training, key=lambda process: (process.step, -process.stepped_s), default=None)
        if newest is None:
            return None
        return Progress(step=newest.step, age_s=self.sim.clock.now_s - newest.stepped_s)

    def _send(self) -> None:
        self._sequence += 1
        place = self.node.place
        status = NodeStatus(
            job_id="sim",
            node_rank=NodeRank(-1 if place is None else place),
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
            host=self.name,
            wants=NodeRank(self._wants),
            progress=self._progress(),
        )
        for manager in self.sim.managers:
            if not manager.dead:
                said = self._said.setdefault(manager.machine, Shorthand())
                told = replace(status, ledger=said.ledger(self.node.directive), heard=said.heard)
                self.sim.network.send(self, manager, True, manager.receive, told)
