"""A job of many nodes under faults, played against the real core (`trace_play.py`).

Rules:

1. From the strike of a fault on, nothing is trained, except with corruption, which is not noticed at first. The core
   gets the first report of a fault when its `detect_s` is over. `trace_faults.py` draws the faults. Effects by kind:

   - device: the process dies. If lasting, each new one on that node dies too, when it opens the device.
   - host: the agent falls silent, and its kernel does not answer.
   - network: a collective raises on every rank. If lasting, the node's own check takes it out: its agent leaves.
   - hang: a watchdog makes a collective raise. If lasting, the process does not pause either, and the core fences it.
   - bug: the process exits with 1. If lasting, its successor does so at the same step.
   - notice: an operator drains the node. A refused request is repeated each minute until it is granted.
   - corruption: wrong numbers are everywhere when they are noticed. The core has no rollback. So the job is stopped and
     starts from the last checkpoint before the strike, on other hardware.
2. A job that the core has stopped starts anew from its last checkpoint. A fault during that start begins it anew.
3. A job that starts all of its processes again and again without a step for `manual_s` is stopped by hand.
"""

from benchmarks.trace_faults import Fault, Kind
from benchmarks.trace_meter import WAIT_NODE, Meter
from benchmarks.trace_nodes import Node
from benchmarks.trace_play import FIRST, Play
from benchmarks.trace_times import Times
from taskd.core.policy import Policy
from taskd.core.recovery import JobEnded, Phase, Recovery
from taskd.core.recovery.phases import LIVE
from taskd.wire.messages import Order, Stage

DRAIN_S = 60.0


class Job(Play):
    """A job from its first step on. It is started again when the core has ended it."""

    def __init__(self, policy: Policy, times: Times, meter: Meter, spares: int) -> None:
        super().__init__(policy, times, meter, spares)
        self._form()

    def run(self, faults: list[Fault], length_s: float) -> None:
        """Play the faults until the time is over."""
        for fault in faults:
            self.clock.at(fault.at_s, self._strike, fault)
        self.clock.run(length_s)
        self.meter.pass_to(length_s)

    # ---- the job as a whole

    def _form(self) -> None:
        """Start all processes from the last checkpoint. The time for that has already passed."""
        self._epoch += 1
        self._down = self._cause = ""
        self.core = Recovery(self.policy)
        self.directive = FIRST
        for node in self.holders.values():
            node.start(0, 0)
            node.running = True
            node.reach(Stage.TRAINING, 0, step=self.meter.steps)
            self._report(node)
        for spare in self._spares.values():
            self._report(spare)
        self._flowing = True
        self._book()

    def _stop(self, kept_s: float, cause: str, extra_s: float = 0.0) -> None:
        """Take the job down. It is up again when a restart has taken its time."""
        self.meter.pass_to(self.clock.now_s)
        self.meter.roll_back(kept_s, cause)
        self._epoch += 1
        self._flowing, self._cause = False, cause
        self._buggy.clear()
        bad = [place for place, node in self.holders.items() if node.broken or node.silent or node.leaving]
        for _ in bad:
            self._later(self.times.spare_back_s, self._add_spare, always=True)
        wanted = sorted({*bad, *range(self.policy.node_count)} - ({*self.holders} - {*bad}))
        wait_s = self.times.cluster_s if len(wanted) > len(self._spares) else 0.0
        for place in wanted:
            self.holders[place] = self._new_node(place)
        self._stages([("manual", extra_s), (WAIT_NODE, wait_s), ("restart", self.times.restart_s)])

    def _stages(self, stages: list[tuple[str, float]]) -> None:
        if not stages:
            self._form()
            return
        (self._down, length_s), *rest = stages
        self._book()
        self._later(length_s, self._stages, rest)

    def _stopped(self, stopped: JobEnded) -> None:
        dumped = any(node.stage is Stage.DUMPED for node in self.holders.values())
        bug = bool(self._buggy)
        self.outcomes["stopped: dump" if dumped else "stopped: bug" if bug else "stopped"] += 1
        self.meter.pass_to(self.clock.now_s)
        kept_s = self.meter.step_kept_s if dumped else self.meter.checkpoint_kept_s
        self._stop(kept_s, self._cause, self.times.manual_s if bug else 0.0)

    # ---- faults

    def _strike(self, fault: Fault) -> None:
        if self._down:
            if fault.kind not in (Kind.NOTICE, Kind.CORRUPTION):
                self._stop(self.meter.useful_s, fault.cause)
            return
        places = sorted(self.holders)
        node = self.holders[places[int(fault.where * len(places))]]
        self.meter.pass_to(self.clock.now_s)
        if fault.kind is Kind.NOTICE:
            self._drain(node, fault.cause)
            return
        if fault.kind is Kind.CORRUPTION:
            self._later(fault.detect_s, self._corrupt, node, self.meter.checkpoint_kept_s, fault.cause)
            return
        self._break(fault.cause)
        node.stuck = True
        node.hung = fault.kind is Kind.HANG and fault.lasting
        node.broken = node.broken or (fault.kind is Kind.DEVICE and fault.lasting)
        self._later(fault.detect_s + self.times.notice_s, self._notice, node, node.wanted, fault)
        self._book()

    def _notice(self, node: Node, process: int, fault: Fault) -> None:
        """Show a fault to the core, when its `detect_s` is over."""
        if self.holders.get(node.place) is not node:
            return
        if fault.kind is Kind.HOST:
            node.silent, node.running = True, False
            self._report(node)  # its last heartbeat
            self._ticks(self.policy.membership.suspect_s)
        elif fault.kind is Kind.NETWORK and fault.lasting:
            self._beat()
            node.leaving = node.silent = True
            node.stage, node.cause, node.running = Stage.DEAD, "signal 15 (SIGTERM)", False
            self._report(node)
            self._ticks(1.0)
        elif node.wanted != process or not node.running:
            return  # another fault has ended that process
        elif fault.kind in (Kind.DEVICE, Kind.BUG):
            if fault.kind is Kind.BUG and fault.lasting:
                self._buggy.add(node.place)
            self._die(node, "exit code 1" if fault.kind is Kind.BUG else "signal 6 (SIGABRT)")
        else:
            node.stuck = node.hung
            self._raise(node)

    def _raise(self, node: Node) -> None:
        """Let a collective raise: ranks leave it, and the core gets the report of the first one."""
        if self.core.phase in (*LIVE, Phase.JOINING, Phase.RESUMING):
            first = next((n for n in self.holders.values() if n.running and not n.stuck), node)
            first.reach(
                Stage.PAUSED, self.directive.generation, step=self.meter.steps, cause="RuntimeError: collective"
            )
            self._report(first)
            self._ticks(self.policy.deadlines.confirm_s)
        elif self.directive.order is Order.PAUSE:
            self._later(self.times.pause_s, self._pause, self.directive.generation)

    def _corrupt(self, node: Node, kept_s: float, cause: str) -> None:
        if not self._down:
            node.broken = True
            self.outcomes["stopped: corruption"] += 1
            self._stop(min(kept_s, self.meter.useful_s), cause)

    def _rescue(self, steps: int) -> None:
        """Take the broken nodes out by hand if the job has started again and again without a step."""
        if self.meter.steps == steps and not self._flowing:
            self.outcomes["stopped by hand: no step for too long"] += 1
            self._stop(self.meter.useful_s, self._cause)

    def _drain(self, node: Node, cause: str) -> None:
        if self.holders.get(node.place) is not node or self._down:
            return
        before, self._cause = self._cause, cause
        self._beat()
        refusal, actions = self.core.move_from(str(node.place), self.clock.now_s)
        if refusal:
            self._cause = before
            self._later(DRAIN_S, self._drain, node, cause)
        self._perform(actions)
