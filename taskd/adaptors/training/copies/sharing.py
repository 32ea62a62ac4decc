"""Which rank of a node copies a state that several of its ranks have, and which puts down its own place alone.

Each says in the world's store what it holds. The first of a node that holds it copies it. Of ranks that say nothing
else of their parts the digests of their parameters tell whether they hold the same, as for replica sets.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from torch._C._distributed_c10d import Store

from taskd.adaptors.training.copies.ring import CONNECT_S
from taskd.adaptors.training.sharding.replicas import Replicas
from taskd.errors import CopyError
from taskd.wire.kinds import JobRank

Asked = Callable[[Callable[[], object]], object]


def held_by(replicas: Replicas) -> str:
    """What a rank says that it holds: equal for ranks that hold the same."""
    return " ".join(("state", replicas.name, *replicas.weights[-1:]))


def copies_it(
    store: Store, rank: JobRank, before: Iterable[JobRank], held: str, asked: Asked, pauses: Iterator[None]
) -> bool:
    """Whether this rank, which holds `held`, copies it: none of those `before` it on its node does.

    `asked` returns what a question to the store gives; `pauses` wait between two. Both raise to end this.

    Raises:
        CopyError: one of them does not say what it holds. It makes no copies.
    """
    end_s = time.monotonic() + CONNECT_S
    asked(lambda: store.set(f"held/{rank}", held))
    for other in before:
        key = f"held/{other}"
        while not asked(lambda key=key: store.check([key])):  # type: ignore[misc]
            if time.monotonic() > end_s:
                raise CopyError(f"rank {other} makes none")
            next(pauses)
        said = asked(lambda key=key: store.get(key))  # type: ignore[misc]
        if said == held.encode():
            return False
    return True
