"""The choice of the rank that copies a state which several ranks of a node hold.

Each rank writes the key of its state into the store of the world. The lowest rank of a node with a key copies that
state. A key has the digest of the parameters: ranks of equal names may hold different weights.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from torch._C._distributed_c10d import Store

from taskd.adaptors.training.copies.ring import CONNECT_S
from taskd.adaptors.training.sharding.replicas import Replicas
from taskd.errors import CopyError
from taskd.wire.kinds import JobRank

Asked = Callable[[Callable[[], object]], object]


def state_key(replicas: Replicas) -> str:
    """Return the key of a rank's state: equal on ranks that hold the same state."""
    return " ".join(("state", replicas.name, *replicas.weights[-1:]))


def copies_state(
    store: Store, rank: JobRank, earlier: Iterable[JobRank], key: str, asked: Asked, pauses: Iterator[None]
) -> bool:
    """Return whether no `earlier` rank of the node has this key, so that this rank copies the state.

    Args:
        store: store of the world.
        rank: this rank.
        earlier: lower ranks of its node.
        key: key of its state.
        asked: runs a query to the store and returns its result; raises to end the wait.
        pauses: each `next` waits until the store may be queried again; raises to end the wait.

    Raises:
        CopyError: an earlier rank has written no key within `CONNECT_S`.
    """
    end_s = time.monotonic() + CONNECT_S
    asked(lambda: store.set(f"held/{rank}", key))
    for other in earlier:
        place = f"held/{other}"
        while not asked(lambda place=place: store.check([place])):  # type: ignore[misc]
            if time.monotonic() > end_s:
                raise CopyError(f"rank {other} makes none")
            next(pauses)
        if asked(lambda place=place: store.get(place)) == key.encode():  # type: ignore[misc]
            return False
    return True
