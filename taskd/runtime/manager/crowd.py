"""Bounds on the agents that a manager accepts and remembers, however many names a peer may invent for itself.

Rules:

1. A job has as many agents as places, and some that wait for one (`most_waiting`). Known agents stay accepted. One more
   agent is ignored until others have gone. It gets no `Refusal`: its next heartbeat tries again.
2. The sum of the names from former worlds in the reports of waiting agents is bounded.
3. An agent reports on the ranks of the place that it holds, or held in the last world.
"""

import msgspec

from taskd.core.membership.plausible import implausible
from taskd.core.recovery import Phase, Recovery
from taskd.runtime.links.links import Peer
from taskd.wire.kinds import JobRank
from taskd.wire.messages import EvidenceReport, Ledger, NodeStatus

SPARES = 256
"""Agents that may wait, beyond `_PER_PLACE` for each place."""
_PER_PLACE = 4
"""Agents that may wait for each place. A torchrun that restarts repeatedly has a new name each time.

A former name is kept until its silence removes it.
"""


def most_waiting(node_count: int) -> int:
    """Return the number of agents that may wait for a place in a job of `node_count` places."""
    return _PER_PLACE * node_count + SPARES


MOST_NAMES = 4 << 20
"""Most names from former worlds in the reports of all waiting agents together, once the job has formed. A manager's own
agents send none (`core/membership/shorthand.py`). An agent with another manager's ledger sends it until it is answered.
"""
_FEW_NAMES = 64


class Peers(dict[str, Peer]):
    """Newest connection of each agent: of all agents that the core knows, and of few others."""

    def __init__(self, node_count: int) -> None:
        super().__init__()
        self.waiting: set[str] = set()
        """Agents that were found waiting for a place."""
        self._most_waiting = most_waiting(node_count)
        self._most = 2 * (node_count + self._most_waiting)

    def crowded_out(self, status: NodeStatus, core: Recovery) -> str:
        """Return why an agent's report is ignored; "" if there is room."""
        world, forming, names = core.world, core.phase is Phase.FORMING, _names(status.ledger)
        if not forming and names > _FEW_NAMES and world.nodes.place_of(status.agent_id) is None:
            others = (view.status for name, view in world.nodes.candidates.items() if name != status.agent_id)
            if names + sum(_names(other.ledger) for other in others) > MOST_NAMES:
                return f"it speaks of {names} agents of an earlier world, expected {MOST_NAMES} of all that wait"
        if len(world.nodes.candidates) < self._most_waiting or status.agent_id in world.nodes.candidates:
            return ""
        free = forming and status.node_rank >= 0 and status.node_rank not in world.nodes.holders
        if free or world.nodes.place_of(status.agent_id) is not None:
            return ""
        return f"found one more agent that wants a place, expected at most {self._most_waiting} to wait for one"

    def put(self, agent_id: str, peer: Peer, core: Recovery) -> None:
        """Record an agent's connection. Agents that the core has forgotten are dropped here when they are many."""
        world = core.world
        self[agent_id] = peer
        if len(self) > self._most:
            for name in [name for name in self if not _known(name, core)]:
                del self[name]
        if len(self.waiting) > self._most:
            self.waiting &= world.nodes.candidates.keys()


def _names(ledger: Ledger) -> int:
    return len(ledger.places) + len(ledger.agreed) + len(ledger.excluded)


def _known(agent_id: str, core: Recovery) -> bool:
    return agent_id in core.world.nodes.candidates or core.world.nodes.place_of(agent_id) is not None


def unfit(status: NodeStatus, core: Recovery) -> str | None:
    """Return why a node cannot belong to this job; None if it can."""
    policy, forming = core.policy, core.phase is Phase.FORMING
    if status.job_id != policy.job_id:
        return f"found job {status.job_id!r}, expected {policy.job_id!r}; set the same job_id on all nodes"
    odd = implausible(status, generation=core.world.generation, forming=forming, term=core.term)
    if odd:
        return odd
    if status.node_rank < 0:
        return "found ranks on a node without a place, expected none" if status.ranks else None
    fewer = 0 < status.min_nodes <= status.node_count <= policy.node_count  # `--nnodes=MIN:MAX`
    fits = fewer or status.node_count == policy.node_count
    if not fits or len(status.ranks) not in (0, policy.ranks_per_node):
        return (
            f"found {status.node_count} nodes with {len(status.ranks)} processes each, expected "
            f"{policy.node_count} with {policy.ranks_per_node}; make the manager (node_nums, "
            "proc_per_node) and torchrun (--nnodes, --nproc_per_node) agree"
        )
    most = policy.node_count * policy.ranks_per_node
    if any(rank.rank >= most for rank in status.ranks):
        return f"found rank {max(rank.rank for rank in status.ranks)}, expected 0 to {most - 1}"
    if not 0 <= status.node_rank < policy.node_count:
        return f"found node rank {status.node_rank}, expected 0 to {policy.node_count - 1}"
    return None


def own_evidence(message: EvidenceReport, core: Recovery) -> tuple[dict[JobRank, msgspec.Raw] | None, str]:
    """Return the evidence on the agent's own ranks, or None, and the error in the rest of its report, or ""."""
    if core.phase is Phase.FORMING:
        return None, ""  # a manager that has just taken over does not know the holders of the places yet
    places = core.world.nodes.known_places(message.agent_id)
    if not places:
        return None, "it comes from an agent that holds no place, expected the ranks' own"
    found = {rank: raw for rank, raw in message.evidence.items() if core.policy.place_of(rank) in places}
    strange = message.evidence.keys() - found.keys()
    reason = f"it reports rank {min(strange)}, which is not one of node {min(places)}" if strange else ""
    return found, reason
