"""The ring of ranks that keep each other's copies.

The *buddy* of a rank keeps its copies: it has the same local rank on the next node of the world. The rank that it is
the buddy of is its *ward*. On a single node there are none, because a second copy there would be lost with the first.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from taskd.wire.kinds import JobRank

CONNECT_S: Final = 60.0
"""Longest wait of a rank for its neighbours, in seconds."""


class Neighbours(NamedTuple):
    """The rank that keeps a rank's copies, and the rank whose copies it keeps; None on a single node."""

    buddy: JobRank | None
    ward: JobRank | None


class Member(NamedTuple):
    """One rank of a world.

    Attributes:
        rank: its rank in the job.
        first: whether it counts the results of all ranks.
        world_size: number of ranks in the world.
        near: its neighbours.
        earlier: members of its node with lower ranks.
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
    """Return the neighbours of a rank in a world of these members. Each node has `per_node` ranks of the job."""
    places = sorted({member // per_node for member in members})
    at = places.index(rank // per_node)
    before, after = (JobRank(places[(at + way) % len(places)] * per_node + rank % per_node) for way in (-1, 1))
    return Neighbours(None, None) if len(places) == 1 else Neighbours(after, before)
