"""Replica sets in a checkpoint, for a job whose ranks have different parts of the state.

Rules:

1. The lowest rank of each set writes for it. Sharded tensors (`DTensor`) need no such rank: torch writes the pieces of
   one tensor under one name, whichever ranks have them.
2. A tensor that is not sharded may differ from set to set: a buffer, or tensors of the same name in a pipeline's
   stages. The checkpoint has the first set's tensor under its name, and those of sets that differ as `NAME@SET`.
3. A set whose outline differs has an outline of its own. A rank that finds its own set loads by that set's outline, and
   gets every bit back. Any other rank (another mesh, fewer stages) loads by all outlines together, as far as they do
   not contradict each other.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from taskd.adaptors.training import tree
from taskd.adaptors.training.checkpoints.content import Content, Rows, collect
from taskd.adaptors.training.checkpoints.files import OUTLINE, StateSet
from taskd.adaptors.training.checkpoints.ranks import Ranks
from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.shards import is_part
from taskd.core.replica_sets import Replica, keys_of
from taskd.errors import CheckpointError
from taskd.wire.kinds import JobRank
from taskd.wire.text import line, name

_MOST_EXACT_BYTES = 1 << 20
_STAGE = "stage="
"""Part of a set's name if the set belongs to a pipeline."""


@dataclass(frozen=True)
class OwnSet:
    """The content that one rank writes for its set.

    Attributes:
        content: content with the names that its tensors have in the checkpoint.
        outline: file for the content's outline, if this rank writes it.
        sets: all sets, for the manifest; none if there is only one.
        size_bytes: size of all tensors of the job.
    """

    content: Content
    outline: str | None
    sets: tuple[StateSet, ...]
    size_bytes: int


def divide(recovery: StateRecovery, ranks: Ranks, slots: Sequence[JobRank]) -> OwnSet:
    """Find the sets of these ranks, and the content that this rank writes. Collective.

    `slots`: the ranks that they have in the job, in their order.

    Raises:
        RankFailures: a part's `state_dict()` has raised on one of them.
    """
    said = recovery.replicas
    replicas = [Replica(*one) for one in ranks.gather((said.name, said.weights))]
    keys = keys_of({JobRank(rank): replica for rank, replica in enumerate(replicas)})
    members: dict[str | None, list[int]] = {}
    for rank, key in keys.items():
        members.setdefault(key, []).append(rank)
    speakers = [its[0] for its in members.values()]
    own = list(members).index(keys[JobRank(ranks.rank)])
    speaks, lists = ranks.rank == speakers[own], ranks.rank == 0
    found = ranks.do(lambda: collect(recovery.parts, is_first=speaks, lists=lists))
    if len(members) == 1:
        return OwnSet(found, OUTLINE if speaks else None, (), found.size_bytes)
    renamed = _renamed(found, ranks, speakers, own)
    content = ranks.do(lambda: collect(recovery.parts, is_first=speaks, lists=lists, renamed=renamed))
    shared = set(ranks.gather(sorted(content.tensors) if ranks.rank == speakers[0] else [])[speakers[0]])
    size_bytes = content.size_bytes
    if own:  # tensors of the first set too are not written twice, unless they are renamed
        size_bytes -= sum(
            t.nbytes for n, t in content.tensors.items() if n in shared and n not in renamed and not is_part(t)
        )
    told = ranks.gather((hashlib.blake2b(content.outline).hexdigest(), size_bytes, content.listed))
    first: dict[str, int] = {}
    for number, speaker in enumerate(speakers):
        first.setdefault(told[speaker][0], number)
    outlines = [OUTLINE if (at := first[told[speaker][0]]) == 0 else f"parts-{at}.msgpack" for speaker in speakers]
    if lists:
        _list_all([told[speakers[number]][2] for number in first.values()], content)
    sets = tuple(
        StateSet(name=name(replicas[its[0]].name), ranks=tuple(slots[rank] for rank in its), outline=outline)
        for its, outline in zip(members.values(), outlines, strict=True)
    )
    is_written = speaks and first[told[ranks.rank][0]] == own
    size_bytes = sum(told[speakers[number]][1] for number in first.values())
    return OwnSet(content, outlines[own] if is_written else None, sets, size_bytes)


def _renamed(content: Content, ranks: Ranks, speakers: list[int], own: int) -> dict[str, str]:
    """Return new names for the tensors that differ from an earlier set's tensor of the same name. Collective."""
    mine: dict[str, str] = {}
    if ranks.rank in speakers:
        mine = {n: _print(tensor) for n, tensor in content.tensors.items() if not is_part(tensor)}
    together = hashlib.blake2b(repr(sorted(mine.items())).encode()).hexdigest()
    everyone = ranks.gather(together)
    if len({everyone[speaker] for speaker in speakers}) == 1:
        return {}
    by_rank = ranks.gather(mine)
    before: dict[str, str] = {}
    for speaker in speakers[:own]:
        before = {**by_rank[speaker], **before}
    mine = by_rank[speakers[own]]
    return {n: f"{n}@{own}" for n, digits in mine.items() if before.get(n, digits) != digits}


def _print(tensor: torch.Tensor) -> str:
    """Return the tensor's fingerprint. Up to `_MOST_EXACT_BYTES`, no other tensor has the same."""
    if tensor.nbytes <= _MOST_EXACT_BYTES:
        digits = hashlib.blake2b(tree.bytes_of(tensor), digest_size=16).hexdigest()
    else:
        digits = digest([tensor])
    return f"{tensor.dtype} {tuple(tensor.shape)} {digits}"


def _list_all(listed: list[Mapping[str, Any]], content: Content) -> None:
    """Add the parameter names of all sets to the groups of the first set's optimizers, where torch searches them."""
    for its in listed:
        for key, names in its.items():
            known = content.entries.get(key)
            if key.endswith(".params") and isinstance(known, list):
                known += [one for one in names if one not in known]


def own_outline(sets: Sequence[StateSet], name_here: str, rank: JobRank | None) -> str | None:
    """Return the outline file of the set that a rank belongs to; None if it belongs to none.

    `rank` is the rank in a job of the same size, None for another size. It distinguishes sets with the same name.
    """
    alike = [one for one in sets if one.name == name(name_here)]
    if len(alike) > 1:
        alike = [one for one in alike if rank in one.ranks]
    return alike[0].outline if len(alike) == 1 else None


def merged(outlines: Sequence[bytes], sets: Sequence[StateSet]) -> tuple[dict[str, Rows], list[str]]:
    """Return all outlines as one, and the names of values taken from the first set although other sets differ.

    Raises:
        CheckpointError: outlines differ, and belong to pipeline stages or to several sets with the same name.
        msgspec.DecodeError: an outline is damaged.
    """
    together: dict[str, dict[tuple[str | int, ...], Any]] = {}
    differing: dict[str, None] = {}
    for data in outlines:
        for part, rows in msgspec.msgpack.decode(data, type=dict[str, Rows]).items():
            known = together.setdefault(part, {})
            for path, value in rows:
                before: Any = known.setdefault(tuple(path), value)
                if before == value:
                    continue
                if path[0] == "param_groups" and path[-1] == "params":
                    known[tuple(path)] = ["l", [*before[1], *(one for one in value[1] if one not in before[1])]]
                else:
                    differing[".".join(map(str, (part, *path)))] = None
    by_name = len({one.name for one in sets}) == len(sets)
    if differing and (any(_STAGE in one.name for one in sets) or not by_name):
        found = ", ".join(list(differing)[:3])
        raise CheckpointError(
            f"it was written by several stages, which call different things by the same name ({line(found)}), and this "
            "rank is none of them; load it into the same stages, or give each layer one name in the whole model"
        )
    return {part: [(list(path), value) for path, value in rows.items()] for part, rows in together.items()}, [
        *differing
    ]
