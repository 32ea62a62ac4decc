"""Optimizer state that differs between ranks although their weights are equal: each rank's own, which no donor has.

Rules:

1. Each rank writes a digest of a few numbers of its parameters and one of its optimizers' state into the store of the
   default group, and compares them with those of one other rank: no collective, and a wait of a second at most.
2. A parameter for which one rank has state and another has none shows in the digest too.
3. What is sharded or divided by design is left out; so is a world of one rank.
"""

import hashlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof.walk import sample
from taskd.adaptors.training.sharding.own_state import own_state
from taskd.adaptors.training.sharding.partitions import is_zero

_log = logging.getLogger(__name__)
_WAIT: Final = timedelta(seconds=1)
_DIGEST_BYTES: Final = 8


def differing(parts: Parts, key: str) -> list[str]:
    """Return the names of optimizers whose state differs from that of another rank with equal weights.

    `key` is one that all ranks have in common, and no other comparison.
    """
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return []
    return compare(
        parts, dist.PrefixStore(f"taskd/proof/{key}", c10d._world.pg_map[c10d._get_default_group()][1]), dist.get_rank()
    )


def compare(parts: Parts, store: dist.Store, rank: int) -> list[str]:
    """As `differing`, over this store."""
    own = dict(_digests(parts))
    if len(own) < 2:
        return []
    text = ";".join(f"{name}={value}" for name, value in own.items())
    store.set(str(rank), text)
    other = str(0 if rank else 1)
    try:
        store.wait([other], _WAIT)
    except (RuntimeError, ValueError) as error:
        _log.debug("rank %s has not told of its optimizers' state: %s", other, error)
        return []
    theirs = dict(one.split("=", 1) for one in store.get(other).decode().split(";"))
    if theirs.pop("", None) != own.pop(""):
        return []
    return [name for name, value in own.items() if theirs.get(name, value) != value]


def _digests(parts: Parts) -> Iterator[tuple[str, str]]:
    """Of the parameters under the name "", and of each optimizer's state."""
    yield "", _of(parts.parameters())
    for name, part in parts.replicated.items():
        if isinstance(part, torch.optim.Optimizer) and own_state(part) is None and not is_zero(part):
            yield name, _of(_states(part))


def _states(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            yield len(state)
            for key in sorted(state, key=str):
                yield str(key)
                yield state[key]


def _of(values: Any) -> str:
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for value in values:
        found.update(sample(value) if isinstance(value, torch.Tensor) else repr(value)[:200].encode())
    return found.hexdigest()
