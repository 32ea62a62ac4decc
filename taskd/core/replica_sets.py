"""Sets of ranks that hold the same state, by each rank's own report.

Rules:

1. Ranks of different names hold different parts of the state. A name gives the coordinates of the sharded part.
2. Ranks of one name hold the same state, unless the digests of their parameters differ. The digests of the newest
   moment that all of them have reached count. (The stages of a pipeline that a script built by hand have one name.)
3. For a rank without digests, only its name is known.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from taskd.wire.kinds import JobRank
from taskd.wire.state import MeshRow


class Replica(NamedTuple):
    """A rank's own report of the state that it holds."""

    name: str = ""
    """Name of its part of the state; "" for all of it."""
    weights: tuple[str, ...] = ()
    """Digests of its parameters: as its training began, and at its first commit."""
    backs_up: bool = False
    """True if copies of its state are made."""
    elsewhere: bool = False
    """True if the next node keeps these copies too."""
    saved: bool = False
    """True if it has learned of a checkpoint that the job has written."""
    row: MeshRow | None = None
    """Ranks that together with it hold one whole replica of the state; None without a mesh."""


def keys_of(replicas: Mapping[JobRank, Replica | None]) -> dict[JobRank, str | None]:
    """Return the key of each rank's replica set; None for a rank without a report.

    Ranks with the same key hold the same state.
    """
    by_name: dict[str, list[JobRank]] = {}
    keys: dict[JobRank, str | None] = dict.fromkeys(replicas)
    for rank, replica in replicas.items():
        if replica is not None:
            by_name.setdefault(replica.name, []).append(rank)
            keys[rank] = replica.name
    for name, ranks in by_name.items():
        weights = {rank: replica.weights for rank in ranks if (replica := replicas[rank]) is not None}
        moment = _differ_at(set(weights.values()))
        if moment is not None:
            for rank, digests in weights.items():
                digest = digests[moment] if len(digests) > moment else "unknown"
                keys[rank] = f"{name or 'weights'} {digest}"
    return keys


def _differ_at(weights: Iterable[tuple[str, ...]]) -> int | None:
    """Return the index of the moment at which the digests differ; None if they never do."""
    known = [digests for digests in weights if digests]
    committed = [digests[1] for digests in known if len(digests) > 1]
    if len(set(committed)) > 1:
        return 1
    if len(committed) < len(known) and len({digests[0] for digests in known}) > 1:
        return 0
    return None
