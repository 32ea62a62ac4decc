"""Comparison with another rank: state of optimizers and averages, and values outside of the state.

State that differs between ranks with equal weights is each rank's own: no donor has it.

Rules:

1. Each rank writes a digest of a few numbers of its parameters, and one of each other part's state, into the store of
   the default group. It compares them with those of one other rank: no collective, and a wait of a second at most.
2. A parameter for which one rank has state and another has none shows in the digest too.
3. Parts that are sharded or divided by design are left out. So are a world of one rank, and the buffers of trained
   models, which have a warning of their own.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from taskd.adaptors.groups.tables import default_store
from taskd.adaptors.training.parts.library_part import LibraryPart
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof.samples import sample
from taskd.adaptors.training.sharding.own_state import own_state
from taskd.adaptors.training.sharding.partitions import is_zero

_log = logging.getLogger(__name__)
_WAIT: Final = timedelta(seconds=1)
_DIGEST_BYTES: Final = 8


def differing(parts: Parts, key: str) -> list[str]:
    """Return the names of parts whose state differs from that of another rank with equal weights.

    `key`: a text that all ranks have in common, and no other comparison.
    """
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return []
    return compare(parts, dist.PrefixStore(f"taskd/proof/{key}", default_store()), dist.get_rank())


def compare(parts: Parts, store: dist.Store, rank: int) -> list[str]:
    """Compare as `differing` does, over this store."""
    own = dict(_digests(parts))
    if len(own) < 2:
        return []
    theirs = _exchange(own, store, rank)
    if theirs is None:
        return []
    if theirs.pop("", None) != own.pop(""):
        return []
    return [name for name, value in own.items() if theirs.get(name, value) != value]


def alike(values: Mapping[str, bytes], key: str) -> set[str]:
    """Return the names of values that another rank has, too. `key` as in `differing`.

    It waits for a second at most. With one rank it returns all names.
    """
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return set(values)
    own = {_digest(name.encode()): _digest(value) for name, value in values.items()}
    theirs = _exchange(own, dist.PrefixStore(f"taskd/alike/{key}", default_store()), dist.get_rank())
    found = {name for name, value in own.items() if theirs is not None and theirs.get(name) == value}
    return {name for name in values if _digest(name.encode()) in found}


def _exchange(own: Mapping[str, str], store: dist.Store, rank: int) -> dict[str, str] | None:
    """Publish names and digests. Return those of one other rank, or None if it has published none."""
    store.set(str(rank), ";".join(f"{name}={value}" for name, value in own.items()))
    other = str(0 if rank else 1)
    try:
        store.wait([other], _WAIT)
    except (RuntimeError, ValueError) as error:
        _log.debug("rank %s has not shown what it has: %s", other, error)
        return None
    return dict(one.split("=", 1) for one in store.get(other).decode().split(";"))


def _digest(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()


def _digests(parts: Parts) -> Iterator[tuple[str, str]]:
    """Yield a digest of the parameters under the name "", and of the state of each other part."""
    trained = {id(one) for one in parts.trained()}
    yield "", _of(parts.trained())
    for name, part in parts.replicated.items():
        if isinstance(part, torch.optim.Optimizer):
            if own_state(part) is None and not is_zero(part):
                yield name, _of(_states(part))
        elif not _is_ours(part) and not _is_trained(part, trained) and hasattr(part, "state_dict"):
            yield name, _of(_leaves(part.state_dict()))


def _is_ours(part: Any) -> bool:
    """Return whether taskd has made the part for a library: such a part knows which state is each rank's own."""
    return isinstance(part, LibraryPart) or type(part).__module__.partition(".")[0] == "taskd"


def _is_trained(part: Any, trained: set[int]) -> bool:
    return isinstance(part, torch.nn.Module) and any(id(one) in trained for one in part.parameters())


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        yield len(value)
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


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
