"""One simulated job, from its first process to its end."""

from dataclasses import dataclass, field
from random import Random

from taskd.core.phases import Phase
from taskd.wire.messages import Condition
from tests.sim.clock import Clock
from tests.sim.fabric import Fabric
from tests.sim.judge import Judge
from tests.sim.network import Network
from tests.sim.nodes import Agent, Manager
from tests.sim.process import Process
from tests.sim.scenario import LONGEST_S, Fault, Scenario, draw

AFTERMATH_S = 12.0
"""What happens so long after the end must not break anything either."""


@dataclass(frozen=True)
class Outcome:
    """How one seed went. `breach` is empty if all was well."""

    seed: int
    breach: str
    ended: str
    struck: tuple[str, ...]
    successes: int
    lives: int
    virtual_s: float
    trace: list[str] = field(default_factory=list, repr=False)


class Sim:
    """Everything that belongs to one job."""

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.policy = scenario.policy
        self.script = scenario.script
        self.rng = Random(scenario.seed + 1)
        self.clock = Clock(tracing=tracing)
        self.everybody = range(self.policy.world_size)
        self.checkpoint = 0
        self.struck: list[str] = []
        self._pid = 1000
        self._armed = [fault for fault in scenario.faults if fault.phase is not None]
        self.network = Network(self.clock, self.rng, scenario.weather)
        self.fabric = Fabric(self.clock, self.rng, scenario.weather.deaf)
        self.judge = Judge(self)
        self.manager = Manager(self)
        per_node = self.policy.ranks_per_node
        self.agents = [
            Agent(self, node, range(node * per_node, (node + 1) * per_node)) for node in range(self.policy.node_count)
        ]

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def agent_of(self, rank: int) -> Agent:
        return self.agents[rank // self.policy.ranks_per_node]

    def run(self) -> None:
        """Let the job run to its end."""
        for agent in self.agents:
            self.clock.after(self.rng.uniform(0.0, 0.3), agent.begin)
        self.clock.after(0.0, self.manager.begin)
        for fault in self.scenario.faults:
            if fault.phase is None:
                self.clock.after(fault.delay_s, self._strike, fault)
        longest_s = LONGEST_S if "node" not in (fault.kind for fault in self.scenario.faults) else LONGEST_S / 5
        if not self.clock.run(longest_s, lambda: self.manager.stopped is not None):
            if "node" in self.struck and self.manager.core.phase is Phase.FORMING:
                return  # a node was lost before this manager knew it: the agents go on without a manager
            states = {p.name: p.worker.state.value for a in self.agents for p in a.processes.values() if p.alive}
            raise TimeoutError(f"still {self.manager.core.phase} after {LONGEST_S} s: {states}")
        self.clock.run(self.clock.now_s + AFTERMATH_S, lambda: False)

    def struck_by(self, phase: Phase) -> None:
        """The manager is in this phase: some faults have waited for it."""
        for fault in [fault for fault in self._armed if fault.phase is phase]:
            self._armed.remove(fault)
            self.clock.after(fault.delay_s, self._strike, fault)

    # ---- faults

    def _strike(self, fault: Fault) -> None:
        if self.manager.stopped is not None:
            return
        self.struck.append(fault.kind)
        self.clock.note("fault", "{}", fault)
        node_rank = self.rng.randrange(self.policy.node_count)
        if fault.kind == "burst":
            self.network.burst(node_rank, fault.length_s)
        elif fault.kind == "manager":
            self.manager.restart(fault.length_s)
        elif fault.kind == "node":
            self.agents[node_rank].die()
        elif fault.kind == "term":
            self.agents[node_rank].leave()
        else:
            for process in self._victims(fault):
                self._hit(fault, process)

    def _hit(self, fault: Fault, process: Process) -> None:
        match fault.kind:
            case "kill":
                process.end(clean=False, cause="signal 9 (SIGKILL)")
            case "leave":
                process.end(clean=True, cause="exit code 0")
            case "hang" | "freeze":
                process.hung = True
                process.frozen = fault.kind == "freeze"
                if process.group is not None:  # its peers lose patience
                    self.clock.after(3.0, self.fabric.leave, process.group, process)
                self.clock.after(3.0, self._lose_patience, process)
            case "stray":
                process.pending_error = self.rng.choice(["stray", "late stray"])
            case "tear":
                process.pending_error = "tear"
            case _:
                raise ValueError(fault.kind)

    def _lose_patience(self, process: Process) -> None:
        """Somebody ends a process at last that hangs outside of all collectives, as an operator would."""
        self.clock.after(120.0, lambda: process.end(clean=False, cause="signal 15 (SIGTERM)"))

    def _victims(self, fault: Fault) -> list[Process]:
        living = [p for agent in self.agents for p in agent.processes.values() if p.alive]
        if not living:
            return []
        self.rng.shuffle(living)
        plan = self.manager.directive.plan if self.manager.directive is not None else None
        donors = {transfer.donor for transfer in plan.transfers} if plan is not None else set()
        first = {
            "newcomer": lambda p: p.joins,
            "donor": lambda p: p.rank in donors,
            "first": lambda p: p.rank == 0,
            "any": lambda p: p.condition is not Condition.EMPTY,
        }[fault.victim]
        living.sort(key=lambda p: not first(p))
        return living[: fault.count if fault.kind in ("kill", "hang") else 1]


def simulate(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed. The same seed gives the same job, traced or not."""
    sim = Sim(draw(seed), tracing=tracing)
    breach = ""
    try:
        sim.run()
        breach = explain(sim)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what the seed has found
        breach = f"{type(error).__name__}: {error}"
        if tracing:
            raise_note(sim, error)
    stopped = sim.manager.stopped
    return Outcome(
        seed=seed,
        breach=breach,
        ended=stopped.reason if stopped is not None else "",
        struck=tuple(sim.struck),
        successes=sim.manager.successes,
        lives=sim.judge.lives,
        virtual_s=sim.clock.now_s,
        trace=sim.clock.trace,
    )


def raise_note(sim: Sim, error: Exception) -> None:
    """Where the error was raised, as the last lines of the trace."""
    from traceback import format_exception

    sim.clock.trace += "".join(format_exception(error)).splitlines()


def explain(sim: Sim) -> str:
    """Empty if the job's end is what its faults explain."""
    stopped, struck, policy = sim.manager.stopped, sim.struck, sim.policy
    if stopped is None:
        return "" if "node" in struck else "the job has not ended"
    if stopped.exit_code == 0:
        missing = sorted(set(sim.everybody) - sim.judge.done)
        unfinished = missing and "leave" not in struck
        return f"success, but rank {missing} has not done all its steps" if unfinished else ""
    if "node" in struck or ("term" in struck and "torchrun has ended" in stopped.reason):
        return ""
    left = "no agent on the node" in stopped.reason or "torchrun has ended" in stopped.reason
    if left and any(agent.leaving for agent in sim.agents):
        return ""  # torchrun has ended on a node whose ranks had all exited
    hits = len([kind for kind in struck if kind not in ("burst", "manager")])
    budget = sim.manager.core.budget
    restricted = len(policy.allowed) < 3
    if "restarts of the job are spent" in stopped.reason and budget is not None and hits > 0:
        return "" if budget.spent == budget.max_restarts else f"budget: {stopped.reason}"
    if "repeats without progress" in stopped.reason and hits >= 1:
        return ""
    if "no strategy is left" in stopped.reason and hits >= 1 and (restricted or hits >= 3):
        return ""
    return f"the job was stopped without need after {struck}: {stopped.reason}"
