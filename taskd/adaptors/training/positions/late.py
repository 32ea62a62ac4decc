"""What of a rank's position moves between the end of a forward pass and the commit: the memory of a recurrent network.

The position of a step that is not committed yet is put down as its forward pass ends. If a peer commits that step and
this process dies first, that is all that is known of where it stood. So what moves later is older there than it was.

Rules:

1. Whether anything does is seen in the entries of the two steps before. A step pays nothing. What was put down in a
   backward pass is compared with steps of which that was, too.
2. Of a step without steps before nothing is known.
3. Where the core finds a committed position equal to the one ahead, it puts down none: such a step has moved nothing.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from taskd.adaptors.training.positions.payload import unpack
from taskd.adaptors.training.positions.position_file import PositionEntry, PositionKind

IN_BACKWARD: Final = "\0backward"
"""Beside the data: this rank puts its position down in its backward passes, too. So does who takes it over."""


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


def late_moves(entries: Iterable[PositionEntry], step: int) -> LateMoves:
    """Compare what was put down ahead of the steps before `step` with what their commits have put down."""
    ahead, committed = _newest(entries)
    before = [ahead[one] for one in (step - 1, step - 2) if one in ahead]
    if step in ahead and _is_of_backward(ahead[step]):
        before = [entry for entry in before if _is_of_backward(entry)]
    rng, data = False, set[str]()
    for entry in before:
        later = committed.get(entry.step)
        if later is None or later.sequence < entry.sequence or later.payload == entry.payload:
            continue
        then_rng, then = unpack(entry.payload)
        now_rng, now = unpack(later.payload)
        rng |= then_rng != now_rng
        data |= {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)} - {IN_BACKWARD}
    return LateMoves(bool(before), rng, frozenset(data))


def in_backward(entries: Iterable[PositionEntry]) -> bool:
    """Whether the positions of the newest step were put down in the backward pass, too."""
    newest = max(entries, key=lambda one: one.sequence, default=None)
    return newest is not None and _is_of_backward(newest)


def _is_of_backward(entry: PositionEntry) -> bool:
    return IN_BACKWARD in unpack(entry.payload)[1]


def newest_step(entries: Iterable[PositionEntry]) -> int:
    """The newest step that was put down, ahead or committed; 0 for none."""
    return max((one.step for one in entries), default=0)


def is_ahead(entries: Iterable[PositionEntry], step: int) -> bool:
    """Whether the newest entry of a step was put down before its commit."""
    ahead, committed = _newest(entries)
    return step in ahead and (step not in committed or committed[step].sequence < ahead[step].sequence)


def _newest(entries: Iterable[PositionEntry]) -> tuple[Mapping[int, PositionEntry], Mapping[int, PositionEntry]]:
    """The newest entry of each step, of those ahead and of committed ones."""
    found: dict[PositionKind, dict[int, PositionEntry]] = {PositionKind.TENTATIVE: {}, PositionKind.COMMITTED: {}}
    for entry in sorted(entries, key=lambda one: one.sequence):
        found[entry.kind][entry.step] = entry
    return found[PositionKind.TENTATIVE], found[PositionKind.COMMITTED]
