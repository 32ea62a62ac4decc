"""Entries of the journal on the nodes' reports: their processes, their standbys, and each generation's first step.

Rules:

1. An entry is written if a node's report differs from its last one.
2. A node's processes are written before the manager's actions on its report: a recovery's record names them, too.
"""

from taskd.core.recovery.world import World
from taskd.runtime.manager.journal import Journal
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import NodeStatus, Stage


class NodeJournal:
    """Newest entries of each node in the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._standbys: dict[NodeRank, int] = {}
        self._pids: dict[NodeRank, dict[str, int]] = {}
        self._first_step = -1

    def note(self, status: NodeStatus) -> None:
        """Write the standbys and the processes of a node that holds its place."""
        if self._standbys.get(status.node_rank) != status.standbys:
            self._standbys[status.node_rank] = status.standbys
            self._journal.write("standbys", node_rank=status.node_rank, count=status.standbys)
        pids = {str(rank.rank): rank.pid for rank in status.ranks}
        if self._pids.get(status.node_rank) != pids:
            self._pids[status.node_rank] = pids
            self._journal.write("processes", node_rank=status.node_rank, pids=pids)

    def note_first_step(self, world: World) -> None:
        """Write, once for each generation, that all its ranks have committed a step."""
        if self._first_step < world.generation and world.ranks and world.all_at((Stage.COMMITTED,)):
            self._first_step = world.generation
            self._journal.write("first step", generation=world.generation)
