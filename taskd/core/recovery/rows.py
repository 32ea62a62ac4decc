"""Conditions on which a job whose state lies on a mesh can go on without some of its nodes.

Rules:

1. The unit that can be left out is a row: the ranks that together have one whole replica of the state. Each rank names
   its own row and the row's size.
2. Nodes go and come back one by one. So each remaining row must lie on one node, because a row on several nodes could
   come back by halves.
3. If ranks hold different parts of the state and no rank names a row, it is not known which ranks work together.
"""

from collections.abc import Collection, Iterable, Mapping

from taskd.core.recovery.world import World
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.state import MeshRow


def why_not_without(world: World, sets: Mapping[JobRank, str | None], places: Collection[NodeRank]) -> str:
    """Return why the ranks of all other places cannot go on by themselves; "" if they can.

    `sets`: the keys of the ranks' replica sets.
    """
    rows = {rank: view.replicas.row for rank, view in world.ranks.items() if view.replicas is not None}
    if all(row is None for row in rows.values()):
        apart = len({key for key in sets.values() if key is not None}) > 1
        return (
            "the ranks hold different parts of the state, and no mesh says which of them work together" if apart else ""
        )
    left: dict[MeshRow, dict[JobRank, NodeRank]] = {}
    for rank, view in world.ranks.items():
        row = rows.get(rank)
        if row is not None and row.refusal:
            return f"rank {rank}: {row.refusal}"
        if view.node_rank in places:
            continue
        if row is None:
            return f"which replica of the state rank {rank} is of is not known"
        left.setdefault(row, {})[rank] = view.node_rank
    parts = {key for key in sets.values() if key is not None}
    for row, ranks in left.items():
        if len(ranks) != row.size:
            return f"of the replica {row.name} of the state, {row.size} ranks, only rank {_told(ranks)} would be left"
    for row, ranks in left.items():
        if {sets[rank] for rank in ranks} != parts:
            return f"the ranks of the replica {row.name} of the state do not hold all parts of it"
        if len(set(ranks.values())) > 1:
            nodes = _told(ranks.values())
            return f"the replica {row.name} of the state lies on several nodes ({nodes}), which come and go one by one"
    return ""


def _told(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers))))
