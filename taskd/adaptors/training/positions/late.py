"""Detection of positions that change between the end of a forward pass and the commit, such as a recurrent state.

Rules:

1. The records of the two preceding steps show it: one of the forward pass (ahead), one of the commit. A step costs
   nothing.
2. Without preceding steps nothing is known.
3. The core writes no committed record that equals the one ahead: such a step has changed nothing. A record of a later
   step shows that it was committed.
4. Records of backward passes carry a mark, and are compared only with each other. A step without the mark, behind
   steps with it, has a record that is too old.
"""

import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from taskd.adaptors.training.positions.payload import unpack
from taskd.adaptors.training.positions.position_file import PositionEntry, PositionKind

IN_BACKWARD: Final = "\0backward"
"""Key of the mark of a backward pass, beside the names of the data's parts."""
OF_BATCH: Final = "\0batch "
"""Prefix of the key of a loader's newest batch sample; the loader's name follows."""
OF_NAMES: Final = "\0names "
"""Prefix of the key of local variables of loops over a loader; the loader's name follows."""


@dataclasses.dataclass(frozen=True)
class LateMoves:
    """Changes behind the forward pass, in the steps before a given one.

    Attributes:
        known: whether there were such steps.
        rng: whether random numbers were drawn.
        data: names of the parts that changed.
    """

    known: bool = False
    rng: bool = False
    data: frozenset[str] = frozenset()


def late_moves(entries: Sequence[PositionEntry], step: int) -> LateMoves:
    """Compare the records ahead of the steps before `step` with those of their commits."""
    ahead, committed = _newest(entries)
    before = [ahead[one] for one in (step - 1, step - 2) if one in ahead]
    of_backward = [(entry, marked) for entry in before if (marked := _mark(entry)) is not None]
    if step in ahead and _mark(ahead[step]) is not None:
        before = [entry for entry, _ in of_backward]
    elif step in ahead and of_backward:  # its backward pass did not reach the hook
        return of_backward[0][1]
    rng, data, known = False, set[str](), False
    for entry in before:
        later = committed.get(entry.step)
        if later is None or later.sequence < entry.sequence or later.payload == entry.payload:
            known = True
            continue
        then, now = _unpacked(entry), _unpacked(later)
        if then is not None and now is not None:
            known = True
            rng |= then[0] != now[0]
            data |= {name for name in then[1].keys() | now[1].keys() if then[1].get(name) != now[1].get(name)}
    return LateMoves(known, rng, frozenset(name for name in data if not name.startswith("\0")))


def in_backward(entries: Iterable[PositionEntry]) -> LateMoves | None:
    """Return the changes that a mark names; None without a mark."""
    return next(filter(None, map(_mark, entries)), None)


def batches_ahead(entries: Sequence[PositionEntry], step: int) -> dict[str, bytes]:
    """Return the batch samples recorded ahead of a step's commit, by the name of the loader."""
    ahead, _ = _newest(entries)
    found = _unpacked(ahead[step]) if step in ahead else None
    data = {} if found is None else found[1]
    return {key.removeprefix(OF_BATCH): value for key, value in data.items() if key.startswith(OF_BATCH)}


def newest_step(entries: Iterable[PositionEntry]) -> int:
    """Return the newest recorded step; 0 for none."""
    return max((one.step for one in entries), default=0)


def is_ahead(entries: Sequence[PositionEntry], step: int) -> bool:
    """Return whether a step was recorded ahead and not committed."""
    ahead, _ = _newest(entries)
    if step not in ahead:
        return False
    later = (one for one in entries if one.sequence > ahead[step].sequence)
    return not any(one.step > step or (one.step == step and one.kind is PositionKind.COMMITTED) for one in later)


def mark_of(late: LateMoves) -> bytes:
    """Encode the mark."""
    return msgspec.msgpack.encode((late.rng, sorted(late.data)))


def _mark(entry: PositionEntry) -> LateMoves | None:
    found = _unpacked(entry)
    marked = None if found is None else found[1].get(IN_BACKWARD)
    if marked is None:
        return None
    try:
        rng, names = msgspec.msgpack.decode(marked, type=tuple[bool, list[str]])
    except msgspec.DecodeError:
        return None
    return LateMoves(known=True, rng=rng, data=frozenset(names))


def _unpacked(entry: PositionEntry) -> tuple[list[bytes], dict[str, bytes]] | None:
    """Return random numbers and data of a record; None if it is damaged."""
    try:
        return unpack(entry.payload)
    except (struct.error, msgspec.DecodeError):
        return None


def _newest(entries: Iterable[PositionEntry]) -> tuple[Mapping[int, PositionEntry], Mapping[int, PositionEntry]]:
    """Return the newest record of each step: those ahead, and those of commits."""
    found: dict[PositionKind, dict[int, PositionEntry]] = {PositionKind.TENTATIVE: {}, PositionKind.COMMITTED: {}}
    for entry in sorted(entries, key=lambda one: one.sequence):
        found[entry.kind][entry.step] = entry
    return found[PositionKind.TENTATIVE], found[PositionKind.COMMITTED]
