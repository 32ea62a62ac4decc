"""Effect of each kind of fault on a simulated job."""

from typing import TYPE_CHECKING

from taskd.core.worker import WorkerState
from taskd.wire.messages import Condition, Refuses
from tests.sim.process import Process
from tests.sim.scenario import Fault

if TYPE_CHECKING:
    from tests.sim.nodes import Agent
    from tests.sim.world import Sim

OF_PROCESSES = ("kill", "leave", "hang", "freeze", "stray", "tear")
ODDITIES = ("refuse", "accept", "ask", "unplug", "mute")
"""Faults that harm no process. They never explain the end of a job."""
_SAID = {
    "refuse": Refuses(no_newcomer="its seed is drawn"),
    "accept": Refuses(),
    "ask": Refuses(no_rebuild="it is not exact", anew="its self-check has changed it"),
}


def strike(sim: "Sim", fault: Fault) -> None:
    """Let a fault happen now."""
    holders = [agent for agent in sim.agents if not agent.dead and agent.node.place is not None]
    sim.clock.note("fault", "{}", fault)
    if fault.kind == "alone":
        sim.needs_all = True
        return
    if fault.kind in ODDITIES:
        _be_odd(sim, fault)
    elif fault.kind in OF_PROCESSES:
        sim.struck.append(fault.kind)
        for process in _victims(sim, fault):
            _hit(sim, fault, process)
    elif fault.kind in ("manager", "usurp"):
        sim.struck.append(fault.kind)
        sim.replace_manager(fault.length_s, at_once=fault.kind == "usurp")
    elif holders and _hit_node(sim, fault, sim.rng.choice(holders), holders):
        sim.struck.append(fault.kind)


def _be_odd(sim: "Sim", fault: Fault) -> None:
    if fault.kind == "mute":
        sim.network.mute(sim.manager.machine, min(fault.length_s, 5.0))
        return
    for process in _victims(sim, fault):
        if fault.kind == "unplug":
            process.agent.unplug(process, fault.length_s)
        else:
            process.agent.refuse(process, _SAID[fault.kind])


def _hit_node(sim: "Sim", fault: Fault, agent: "Agent", holders: list["Agent"]) -> bool:
    match fault.kind:
        case "burst":
            sim.network.burst(agent.name, min(fault.length_s, 5.0))
        case "node":
            sim.lose_machine(agent, fault.length_s)
        case "both":
            first = min(holders, key=lambda it: (it.node.place, it.name))
            sim.lose_machine(first, fault.length_s)
            sim.replace_manager(fault.length_s, at_once=False)
        case "agent":
            agent.die_alone()
        case "term":
            agent.leave()
        case "partition":
            machines = [it.machine for it in sim.agents if not it.dead]
            some = sim.rng.sample(machines, sim.rng.randint(1, len(machines)))
            if sim.rng.random() < 0.3:
                some = [it.machine for it in holders]  # the whole world, from the manager and from nodes that wait
            return sim.network.cut(frozenset(some), fault.length_s)
        case "split":
            return sim.split(fault.length_s)
        case "drain":
            sim.manager.drain(sim.rng.randint(0, sim.policy.node_count - 1))
        case _:
            raise ValueError(fault.kind)
    return True


def _hit(sim: "Sim", fault: Fault, process: Process) -> None:
    match fault.kind:
        case "kill":
            process.end(clean=False, cause="signal 9 (SIGKILL)")
        case "leave":
            process.end(clean=True, cause="exit code 0")
        case "hang" | "freeze":
            process.hung = True
            process.frozen = fault.kind == "freeze"
            if process.group is not None:  # its peers time out
                sim.clock.after(3.0, sim.fabric.leave, process.group, process)
            # In the end, a process that hangs outside of all collectives is terminated, as an operator would do it.
            sim.clock.after(123.0, lambda: process.end(clean=False, cause="signal 15 (SIGTERM)"))
        case "stray":
            process.pending_error = sim.rng.choice(["stray", "late stray"])
        case "tear":
            process.pending_error = "tear"
        case _:
            raise ValueError(fault.kind)


def _victims(sim: "Sim", fault: Fault) -> list[Process]:
    living = [p for agent in sim.agents for p in agent.processes.values() if p.alive]
    if not living:
        return []
    sim.rng.shuffle(living)
    plan = sim.manager.directive.plan if sim.manager.directive is not None else None
    donors = {plan.ranks[transfer.donor] for transfer in plan.transfers} if plan is not None else set()
    first = {
        "newcomer": lambda p: p.joins,
        "donor": lambda p: p.rank in donors,
        "first": lambda p: p.rank == 0,
        "behind": lambda p: p.inside and p.worker.state in (WorkerState.TRAINING, WorkerState.JOINING),
        "any": lambda p: p.condition is not Condition.EMPTY,
    }[fault.victim]
    living.sort(key=lambda p: not first(p))
    return living[: fault.count if fault.kind in ("kill", "hang", *ODDITIES) else 1]
