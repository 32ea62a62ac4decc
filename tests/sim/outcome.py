"""Check that the faults of a simulated job explain its end."""

from typing import TYPE_CHECKING

from taskd.core.policy import Strategy

if TYPE_CHECKING:
    from tests.sim.world import Sim

EVERYDAY = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE)
"""Strategies for the loss of a single process. Without them it may end a job."""
HARMLESS = ("burst", "manager", "usurp", "drain")
OF_NODES = ("node", "both", "agent", "partition", "split")
SPENT = "restarts of the job are spent"
EARLY = "before any step was committed"
REPEATS = "repeats without progress"
NOTHING_LEFT = "no strategy is left"
WRITTEN = "a checkpoint of step"
NO_NODE = "no node came within"
TOO_FEW = "too few others are heard"
LATE = "the restarted processes did not come up in time"
ENDED = "torchrun has ended"


def explain(sim: "Sim") -> str:
    """Return an empty string if the end is explained, else the contradiction."""
    stopped, struck = sim.stopped, sim.struck
    if stopped is None:
        return "" if set(struck) & set(OF_NODES) else "the job has not ended"
    if stopped.exit_code == 0:
        missing = sorted(set(sim.manager.core.world.ranks) - sim.judge.done)
        return f"success, but rank {missing} has not done all its steps" if missing and "leave" not in struck else ""
    hits = [kind for kind in struck if kind not in HARMLESS]
    if not hits and not (TOO_FEW in stopped.reason and any(agent.leaving for agent in sim.agents)):
        return f"stopped although nothing has struck: {stopped.reason}"
    if _must_go_on(sim):
        return f"one node was struck, and another was there: {stopped.reason}"
    return "" if _explained(sim, stopped.reason, hits) else f"stopped without need after {struck}: {stopped.reason}"


def _explained(sim: "Sim", reason: str, hits: list[str]) -> bool:
    allowed, budget = sim.policy.strategies.allowed, sim.manager.core.job.budget
    left = any(agent.leaving for agent in sim.agents)  # also where all ranks of a node had exited
    left = left or sim.judge.takeovers > 0  # early in a job, a new manager cannot know which nodes take part
    of_nodes = left or any(kind in OF_NODES or kind in ("term", "leave") for kind in hits)
    if SPENT in reason:
        return budget is not None and budget.spent == budget.max_restarts
    if WRITTEN in reason:
        return Strategy.DUMP in allowed and bool(sim.policy.strategies.dump_to)
    if any(text in reason for text in (NO_NODE, TOO_FEW, ENDED, LATE, "no agent on the node")):
        return of_nodes
    if NOTHING_LEFT in reason:
        return not set(EVERYDAY) <= set(allowed) or len(hits) >= 3 or of_nodes
    return REPEATS in reason or EARLY in reason


def _must_go_on(sim: "Sim") -> bool:
    policy, scenario, stopped = sim.policy, sim.scenario, sim.stopped
    if stopped is None or SPENT in stopped.reason or any(agent.leaving for agent in sim.agents):
        return False
    enough = policy.node_count > 2 and (scenario.relieved or scenario.spares > 0)
    restricted = {Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER} - set(policy.strategies.allowed)
    return enough and not restricted and sim.struck[0] in ("node", "agent") and len(sim.struck) == 1
