"""What of a rank's position moves between the end of a forward pass and the commit: the memory of a recurrent network.

The position of a step that is not committed yet is put down as its forward pass ends. If a peer commits that step and
this process dies first, that is all that is known of where it stood. So what moves later is older there than it was.

Rules:

1. Whether anything does is seen in the entries of the two steps before. A step pays nothing. What was put down in a
   backward pass is compared with steps of which that was, too. If that of one step was not, it is too old.
2. Of a step without steps before nothing is known.
3. Where the core finds a committed position equal to the one ahead, it puts down none: such a step has moved nothing.
   That it was committed shows as soon as anything is put down of the next step.
"""

import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from taskd.adaptors.training.positions.payload import unpack
from taskd.adaptors.training.positions.position_file import PositionEntry, PositionKind

IN_BACKWARD: Final = "\0backward"
"""Beside the data, of a position that was put down in a backward pass. Who takes the rank over does so, too."""


@dataclasses.dataclass(frozen=True)
class LateMoves:
    """What moved behind the forward pass in the steps before one.

    Attributes:
        known: whether there were any.
        rng: whether random numbers were drawn there.
        data: names of parts.
    """

    known: bool = False
    rng: bool = False
    data: frozenset[str] = frozenset()


def late_moves(entries: Sequence[PositionEntry], step: int) -> LateMoves:
    """Compare what was put down ahead of the steps before `step` with what their commits have put down."""
    ahead, committed = _newest(entries)
    before = [ahead[one] for one in (step - 1, step - 2) if one in ahead]
    of_backward = [(entry, marked) for entry in before if (marked := _mark(entry)) is not None]
    if step in ahead and _mark(ahead[step]) is not None:
        before = [entry for entry, _ in of_backward]
    elif step in ahead and of_backward:  # its own backward pass did not tell
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
    return LateMoves(known, rng, frozenset(data - {IN_BACKWARD}))


def in_backward(entries: Iterable[PositionEntry]) -> LateMoves | None:
    """What moves behind the forward pass, if a position was put down in a backward pass."""
    return next(filter(None, map(_mark, entries)), None)


def newest_step(entries: Iterable[PositionEntry]) -> int:
    """The newest step that was put down, ahead or committed; 0 for none."""
    return max((one.step for one in entries), default=0)


def is_ahead(entries: Sequence[PositionEntry], step: int) -> bool:
    """Whether a step was put down before its commit, and that commit did not come."""
    ahead, _ = _newest(entries)
    if step not in ahead:
        return False
    later = (one for one in entries if one.sequence > ahead[step].sequence)
    return not any(one.step > step or (one.step == step and one.kind is PositionKind.COMMITTED) for one in later)


def mark_of(late: LateMoves) -> bytes:
    """What stands under `IN_BACKWARD`."""
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
    """What an entry has of random numbers and data; None for one that is damaged."""
    try:
        return unpack(entry.payload)
    except (struct.error, msgspec.DecodeError):
        return None


def _newest(entries: Iterable[PositionEntry]) -> tuple[Mapping[int, PositionEntry], Mapping[int, PositionEntry]]:
    """The newest entry of each step, of those ahead and of committed ones."""
    found: dict[PositionKind, dict[int, PositionEntry]] = {PositionKind.TENTATIVE: {}, PositionKind.COMMITTED: {}}
    for entry in sorted(entries, key=lambda one: one.sequence):
        found[entry.kind][entry.step] = entry
    return found[PositionKind.TENTATIVE], found[PositionKind.COMMITTED]
