"""Whom a manager hears, and how many it keeps in mind, however many names a peer may invent for itself.

Rules:

1. A job has as many agents as places, and some that wait for one (`most_waiting`): those that are known go on to be
   heard, one more is not, until others have gone. It is not told to go away: it asks again with its next heartbeat.
2. What those that wait may say of former worlds is bounded by its sum.
3. An agent reports to the ranks of the place that it holds, or held in the last world.
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
"""A node whose torchrun starts again and again has a new name each time, until its silence makes it forgotten."""


def most_waiting(node_count: int) -> int:
    """So many agents may wait for a place of a job with so many."""
    return _PER_PLACE * node_count + SPARES


MOST_NAMES = 4 << 20
"""What all that wait may together say of former worlds, once the job has formed. A manager's own agents say nothing of
them (`core/membership/shorthand.py`); one that carries another's ledger has said it when it was answered."""
_FEW_NAMES = 64


class Peers(dict[str, Peer]):
    """By agent, the connection that it was heard by last: of those that the core knows, and hardly any other."""

    def __init__(self, node_count: int) -> None:
        super().__init__()
        self.waiting: set[str] = set()
        """Those that were seen to wait for a place."""
        self._most_waiting = most_waiting(node_count)
        self._most = 2 * (node_count + self._most_waiting)

    def crowded_out(self, status: NodeStatus, core: Recovery) -> str:
        """Why an agent is not heard; empty if there is room."""
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
        """An agent was heard. Those that the core has forgotten are forgotten here when they are many."""
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
    """Why a node cannot be of this job."""
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
    """What an evidence report says of its agent's own ranks, None if that has none; and what is wrong with the rest."""
    if core.phase is Phase.FORMING:
        return None, ""  # a manager that has just taken over: who holds which place is not known yet
    places = core.world.nodes.known_places(message.agent_id)
    if not places:
        return None, "it comes from an agent that holds no place, expected the ranks' own"
    found = {rank: raw for rank, raw in message.evidence.items() if core.policy.place_of(rank) in places}
    strange = message.evidence.keys() - found.keys()
    reason = f"it reports rank {min(strange)}, which is not one of node {min(places)}" if strange else ""
    return found, reason
