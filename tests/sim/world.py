"""One simulated job, from its first process to its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from taskd.core.recovery import JobEnded, Phase
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Stage
from taskd.wire.state import MeshRow
from tests.sim.clock import Clock
from tests.sim.copies import Copies
from tests.sim.fabric import Fabric
from tests.sim.faults import strike
from tests.sim.judge import Judge
from tests.sim.manager import Manager
from tests.sim.network import Network
from tests.sim.nodes import Agent
from tests.sim.outcome import explain
from tests.sim.scenario import LONGEST_S, Fault, Scenario, draw

APART = -1
"""Number of a machine on which only the manager runs."""
NEVER_S = 300.0
AFTERMATH_S = 12.0
"""Time that the simulation continues after the end, in seconds. The invariants hold then, too."""


@dataclass(frozen=True)
class Outcome:
    """Result of one seed. `breach` is empty if no invariant was broken."""

    seed: int
    breach: str
    ended: str
    struck: tuple[str, ...]
    successes: int
    lives: int
    virtual_s: float
    trace: list[str] = field(default_factory=list, repr=False)


LIKE = {
    Phase.SUSPECTING: Phase.STRAYED,
    Phase.AWAITING_QUORUM: Phase.PAUSING,
    Phase.REARRANGING: Phase.PAUSING,
    Phase.ANNOUNCING: Phase.PAUSING,
}
"""Phases that resemble another phase. Faults that wait for the latter also strike in the former."""


class Sim:
    """State and parts of one simulated job."""

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.policy = scenario.policy
        self.script = scenario.script
        self.rng = Random(scenario.seed + 1)
        self.clock = Clock(tracing=tracing)
        self.everybody = range(self.policy.world_size)
        self.checkpoint = 0
        self.successes = 0
        self.struck: list[str] = []
        self.needs_all = False
        """True if the script's set-up fails in a process that starts alone."""
        self._pid = 1000
        self._end: JobEnded | None = None
        self._armed = [fault for fault in scenario.faults if fault.phase is not None or fault.stage is not None]
        self.network = Network(self.clock, self.rng, scenario.weather)
        self.fabric = Fabric(self.clock, self.rng, scenario.weather.deaf, self.network.connected)
        self.copies = Copies(self)
        self.judge = Judge(self)
        self.agents: list[Agent] = []
        self.by_name: dict[str | None, Agent] = {}
        self.managers: list[Manager] = []
        for place in range(self.policy.node_count):
            self._add_agent(NodeRank(place), wants=place)
        for _ in range(scenario.spares):
            self._add_agent(None, wants=-1)
        self.managers.append(Manager(self, APART if scenario.manager_apart else 0, 0))

    @property
    def manager(self) -> Manager:
        """Newest manager."""
        return self.managers[-1]

    @property
    def stopped(self) -> JobEnded | None:
        """End of the job by the newest manager, or by an earlier one if every agent received that first."""
        if self._end is not None:
            return self._end
        if len(self.managers) > 1:
            ends = [manager.stopped for manager in self.managers[:-1] if manager.stopped is not None]
            if ends and not self._is_obeyed(self.manager) and all(agent.stopped or agent.dead for agent in self.agents):
                return ends[-1]
        return self.managers[-1].stopped

    def _is_obeyed(self, manager: Manager) -> bool:
        """Return whether any remaining agent has received an order of it."""
        orders = [agent.node.directive for agent in self.agents if not agent.dead]
        return any(order is not None and order.ledger.term >= manager.core.term for order in orders)

    def deciding(self) -> list[Manager]:
        """Return the living managers that do not know of a newer one."""
        return [manager for manager in self.managers if not manager.dead and not manager.core.superseded]

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def ranks_of(self, place: int) -> range:
        """Return the ranks of a place."""
        per_node = self.policy.ranks_per_node
        return range(place * per_node, (place + 1) * per_node)

    def replicas_of(self, rank: int) -> str:
        """Return the key of a rank's replica set."""
        sets = self.scenario.replica_sets
        return f"shard {rank % sets}" if sets > 1 else ""

    def row_of(self, rank: int, *, whole: bool) -> MeshRow | None:
        """Return the ranks that form a whole replica with this rank. `whole`: its process knows the whole job."""
        sets, ranks = self.scenario.replica_sets, len(self.everybody)
        if sets == 1:
            return None
        if not whole or ranks % sets:
            return MeshRow(refusal="its mesh does not cover the job")
        return MeshRow(name=f"replica={rank // sets}", size=sets)

    def _add_agent(self, place: NodeRank | None, wants: int, *, alone: bool = False) -> Agent:
        agent = Agent(self, len(self.agents), place, wants, alone=alone)
        self.agents.append(agent)
        self.by_name[agent.name] = agent
        return agent

    def run(self) -> None:
        """Run the job to its end."""
        for agent in list(self.agents):
            self.clock.after(self.rng.uniform(0.0, 0.3), agent.begin)
        self.clock.after(0.0, self.manager.begin)
        for fault in self.scenario.faults:
            if fault.phase is None and fault.stage is None:
                self.clock.after(fault.delay_s, self._strike, fault)
        if not self.clock.run(LONGEST_S, self._over):
            states = {p.name: p.worker.state.value for a in self.agents for p in a.processes.values() if p.alive}
            raise TimeoutError(f"still {self.manager.core.phase} after {LONGEST_S} s: {states}")
        self._end = self.stopped
        self.clock.run(self.clock.now_s + AFTERMATH_S, lambda: False)
        while self._end is not None and self.manager.stopped is not self._end:
            self.managers.pop()  # no agent had received an order of it when the job ended

    def _over(self) -> bool:
        """Return whether the job has ended, or can never start because a node was lost before all had come."""
        if self.stopped is not None:
            return True
        if self.clock.now_s <= NEVER_S or self.manager.core.phase is not Phase.FORMING:
            return False
        lost = {"node", "both", "agent", "term", "split"} & set(self.struck)
        return bool(lost) or any(agent.alone for agent in self.agents)

    def struck_by(self, phase: Phase) -> None:
        """Release the faults that waited for this phase of the manager or a similar one."""
        phase = LIKE.get(phase, phase)
        self._let_go(lambda fault: fault.phase is phase and not fault.exactly)

    def entered(self, phase: Phase) -> None:
        """Release the faults that waited for exactly this phase."""
        self._let_go(lambda fault: fault.phase is phase and fault.exactly)

    def reached(self, stage: Stage) -> None:
        """Release the faults that waited for a process to reach this stage."""
        self._let_go(lambda fault: fault.stage is stage)

    def _let_go(self, waits: Callable[[Fault], bool]) -> None:
        for fault in [fault for fault in self._armed if waits(fault)]:
            self._armed.remove(fault)
            self.clock.after(fault.delay_s, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if self.stopped is None:
            strike(self, fault)

    # ---- machines that leave and come

    def lose_machine(self, agent: Agent, away_s: float) -> None:
        """Lose a node, and the manager with it if it ran there."""
        agent.die()
        if self.manager.machine == agent.machine:
            self.replace_manager(away_s, at_once=False)

    def replace_manager(self, away_s: float, *, at_once: bool) -> None:
        """Replace the manager by one that knows nothing. `at_once`: while the first one still lives."""
        if self.stopped is not None or self.manager.dead:
            return
        self.manager.dead = not at_once
        self.clock.after(away_s, self._new_manager)

    def split(self, length_s: float) -> bool:
        """Cut the network. Start a manager, perhaps a node too, on the side without one: two managers may decide."""
        far = [agent.machine for agent in self.agents if not agent.dead and agent.machine != self.manager.machine]
        if self.stopped is not None or self.manager.dead or not far:
            return False
        far = self.rng.sample(far, self.rng.randint(1, len(far)))
        newcomer = self._add_agent(None, wants=-1) if self.rng.random() < 0.5 else None
        if not self.network.cut(frozenset([*far, *([newcomer.machine] if newcomer is not None else [])]), length_s):
            return False
        if newcomer is not None:
            self.clock.after(0.1, newcomer.begin)
        self.clock.after(self.rng.uniform(0.0, 3.0), self._new_manager, far[0])
        return True

    def _new_manager(self, machine: int | None = None) -> None:
        if self.stopped is not None:
            return
        if machine is None:
            machine = self._machine_for_manager()
        self.managers.append(Manager(self, machine, int(self.clock.now_s * 1000) + len(self.managers)))
        self.judge.new_manager()
        self.clock.note(self.manager.name, "is a new one")
        self.clock.after(0.0, self.manager.begin)

    def _machine_for_manager(self) -> int:
        dead_first = not any(agent.node.place == 0 and not agent.dead for agent in self.agents)
        machine = APART
        if dead_first and self.policy.node_count > 1 and self.rng.random() < 0.5:
            # It comes with a new first node, whose launcher does not know of the job.
            alone = self._add_agent(NodeRank(0), wants=0, alone=True)
            machine = alone.machine
            self.clock.after(0.1, alone.begin)
        return machine

    def deliver_node(self, place: int) -> None:
        """Deliver a node, as the manager requested from the cluster."""
        if self.scenario.delivery_s is not None:
            agent = self._add_agent(None, wants=place)
            self.clock.after(self.scenario.delivery_s, agent.begin)


def simulate(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed. The same seed gives the same job, traced or not."""
    return play(draw(seed), tracing=tracing)


def play(scenario: Scenario, *, tracing: bool = False) -> Outcome:
    """Run one scenario."""
    sim = Sim(scenario, tracing=tracing)
    breach = ""
    try:
        sim.run()
        breach = explain(sim)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is a finding of this seed
        breach = f"{type(error).__name__}: {error}"
        if tracing:
            raise_note(sim, error)
    stopped = sim.stopped
    return Outcome(
        seed=scenario.seed,
        breach=breach,
        ended=stopped.reason if stopped is not None else "",
        struck=tuple(sim.struck),
        successes=sim.successes,
        lives=sim.judge.lives,
        virtual_s=sim.clock.now_s,
        trace=sim.clock.trace,
    )


def raise_note(sim: Sim, error: Exception) -> None:
    """Append the error's traceback to the trace."""
    from traceback import format_exception

    sim.clock.trace += "".join(format_exception(error)).splitlines()
