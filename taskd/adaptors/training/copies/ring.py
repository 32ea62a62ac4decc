"""Which rank keeps whose copies.

The *buddy* of a rank is the one of the same local rank on the next node of the world; whose buddy it is, is its *ward*.
On one node there is none: a second copy there would not outlive what the first does not.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from taskd.wire.kinds import JobRank

CONNECT_S: Final = 60.0
"""So long a rank waits for its neighbours."""


class Neighbours(NamedTuple):
    """Who keeps a rank's copies, and whose copies it keeps; None on one node."""

    buddy: JobRank | None
    ward: JobRank | None


class Member(NamedTuple):
    """One rank of a world: its rank in the job, whether it counts for all, how many there are, and its neighbours.

    `earlier`: the members of its node with lower ranks.
    """

    rank: JobRank
    first: bool
    world_size: int
    near: Neighbours
    earlier: tuple[JobRank, ...] = ()


def earlier_on_node(rank: JobRank, members: Sequence[JobRank], per_node: int) -> tuple[JobRank, ...]:
    """Return the members of a rank's node with lower ranks."""
    return tuple(member for member in members if member // per_node == rank // per_node and member < rank)


def neighbours(rank: JobRank, members: Sequence[JobRank], per_node: int) -> Neighbours:
    """Those of one rank of the job in a world of these members, of which each node has `per_node`."""
    places = sorted({member // per_node for member in members})
    at = places.index(rank // per_node)
    before, after = (JobRank(places[(at + way) % len(places)] * per_node + rank % per_node) for way in (-1, 1))
    return Neighbours(None, None) if len(places) == 1 else Neighbours(after, before)
