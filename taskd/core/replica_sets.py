"""Which ranks hold the same state, by what each says of its own.

Rules:

1. Ranks of different names hold different parts of the state: each names the coordinates of what is sharded.
2. Ranks of one name hold the same, unless the digests of their parameters say otherwise: those of the newest moment
   that all of them have reached. (A pipeline that a script has built by hand has stages of one name.)
3. Of a rank without digests its name alone is known.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from taskd.wire.kinds import JobRank
from taskd.wire.state import MeshRow


class Replica(NamedTuple):
    """What a rank says that it holds."""

    name: str = ""
    """Of its part of the state; "" for all of it."""
    weights: tuple[str, ...] = ()
    """Digests of its parameters: as its training began, and at its first commit."""
    backs_up: bool = False
    """Copies of its state are made."""
    elsewhere: bool = False
    """They lie on the next node too."""
    saved: bool = False
    """It knows of a checkpoint that the job has written."""
    row: MeshRow | None = None
    """The ranks with which it has one whole replica of the state; None without a mesh."""


def keys_of(replicas: Mapping[JobRank, Replica | None]) -> dict[JobRank, str | None]:
    """The key of each rank's replica set; None where nothing was heard. Ranks with the same key hold the same state."""
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
    """At which moment the digests show that not all hold the same; None if they do not show it."""
    known = [digests for digests in weights if digests]
    committed = [digests[1] for digests in known if len(digests) > 1]
    if len(set(committed)) > 1:
        return 1
    if len(committed) < len(known) and len({digests[0] for digests in known}) > 1:
        return 0
    return None
