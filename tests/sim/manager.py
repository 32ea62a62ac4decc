"""Simulated manager: `core.recovery`, and the cluster from which it requests nodes."""

from functools import partial
from typing import TYPE_CHECKING

from typing_extensions import assert_never

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.membership.shorthand import answer
from taskd.core.recovery import (
    Action,
    AskCluster,
    AskKernel,
    Diagnosed,
    JobEnded,
    Note,
    Phase,
    Publish,
    Recovered,
    Recovery,
    Setback,
    Superseded,
)
from taskd.core.recovery.budget import EARLY_S
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive, Heard, NodeStatus
from tests.sim.judge import demand

if TYPE_CHECKING:
    from tests.sim.nodes import Agent
    from tests.sim.world import Sim

TICK_S = 0.2
GROWTH_S = 3.0
"""Longest wait of a node, in seconds, while the training world lacks a place."""


class Manager:
    """One manager of the job. Managers may follow one another, and two may exist for a while."""

    def __init__(self, sim: "Sim", machine: int, sequence: int) -> None:
        self.sim = sim
        self.machine = machine
        self.name = f"manager {len(sim.managers)}"
        self.core = Recovery(sim.policy, sequence=sequence)
        self.directive: Directive | None = None
        self.dead = False
        self.stopped: JobEnded | None = None
        self._heard: dict[str, Agent] = {}
        self._idle_since_s: float | None = None
        self._phase = self.core.phase

    def begin(self) -> None:
        """Start the manager's regular tick."""
        if not self.dead:
            self._perform(self.core.tick(self.sim.clock.now_s))
            self._watch_growth()
            self.sim.clock.after(TICK_S, self.begin)

    def receive(self, status: NodeStatus) -> None:
        """Receive an agent's message."""
        if self.dead:
            return
        agent = self.sim.by_name[status.agent_id]
        self._heard[agent.name] = agent
        known, before = self.core.world.generation, self.directive
        stale = self.sim.judge.stale(self.core, status)
        actions = self.core.hear(status, self.sim.clock.now_s)
        if stale:
            self.sim.judge.heard_stale(status, known, actions)
        self._perform(actions)
        if self.directive is before and before is not None and not self.core.superseded:
            self._send(agent, answer(status, before))

    def evidence_report(self, agent_id: str, probe: int, evidence: dict[JobRank, Evidence]) -> None:
        """Receive an agent's answer to a query for evidence."""
        if not self.dead:
            self._perform(self.core.hear_evidence(agent_id, probe, evidence, self.sim.clock.now_s))

    def drain(self, place: int) -> None:
        """Drain a node on behalf of an operator."""
        if not self.dead:
            refusal, actions = self.core.move_from(str(place), self.sim.clock.now_s)
            self.sim.clock.note(self.name, "drain of {}: {}", place, refusal or "done")
            self._perform(actions)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Publish():
                    self._publish(action.directive)
                case Recovered():
                    self.sim.successes += 1
                    self.sim.clock.note(self.name, "recovered: {}", action.record.phases_ms())
                    self.sim.judge.recovered(action.record)
                case JobEnded():
                    demand(self.stopped is None, "stopped twice: {}", action.reason)
                    self.stopped = action
                    self.sim.clock.note(self.name, "stops the job ({}): {}", action.exit_code, action.reason)
                case Diagnosed():
                    self.sim.clock.note(self.name, "says: {}", action.diagnosis.sentence)
                    self.sim.judge.diagnosed(action)
                case AskKernel():
                    self.sim.clock.after(0.3 * self.sim.rng.random(), self._ask_kernel, action.agent_id)
                case AskCluster():
                    self.sim.clock.note(self.name, "asks for a node: {}", action.reason)
                    self.sim.deliver_node(action.node_rank)
                case Superseded():
                    self.sim.clock.note(self.name, "is superseded by {}", action.term)
                case Note() | Setback():
                    self.sim.clock.note(self.name, "{}", action.text)
                case _:
                    assert_never(action)
        if actions:
            self.sim.struck_by(self.core.phase)
        if self.core.phase is not self._phase:
            self._phase = self.core.phase
            self.sim.entered(self._phase)

    def _ask_kernel(self, agent_id: str) -> None:
        if self.dead:
            return
        agent = self.sim.by_name[agent_id]
        listening = not agent.dead and self.sim.network.connected(self.machine, agent.machine)
        self._perform(self.core.answered(agent_id, listening=listening, now_s=self.sim.clock.now_s))

    def _publish(self, directive: Directive) -> None:
        self.sim.clock.note(
            self.name,
            "publishes {} generation {} to {} at {} ({})",
            directive.order.value,
            directive.generation,
            {order.rank: order.incarnation for order in directive.ranks},
            [place.agent_id for place in directive.places],
            directive.reason,
        )
        self.sim.judge.published(self, directive)
        self.directive = directive
        for agent in self._heard.values():
            self._send(agent, directive)

    def _send(self, agent: "Agent", message: Directive | Heard) -> None:
        self.sim.network.send(agent, self, False, partial(agent.receive, self.machine), message)

    def _watch_growth(self) -> None:
        core = self.core
        absent = set(map(NodeRank, range(core.policy.node_count))) - set(core.world.places)
        if core.superseded or core.phase is not Phase.RUNNING or not absent or core.job.absence.held:
            self._idle_since_s = None
            return
        waits = any(core.world.nodes.candidate_for(place) is not None for place in absent)
        youngest_s = max((view.since_s for view in core.world.ranks.values()), default=0.0)
        outside = not core.world.all_cooperate() and self.sim.clock.now_s - youngest_s < EARLY_S
        if not waits or outside:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = self.sim.clock.now_s
        else:
            waited_s = self.sim.clock.now_s - self._idle_since_s
            demand(waited_s < GROWTH_S, "places {} are absent and a node waits", absent)
