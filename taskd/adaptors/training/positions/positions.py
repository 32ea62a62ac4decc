"""Store of one rank's positions, step by step."""

from collections.abc import Sequence
from typing import Protocol

from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.positions.payload import pack
from taskd.adaptors.training.positions.position_file import PositionEntry, PositionKind
from taskd.runtime.worker.pulse import Buffer


class Positions(Protocol):
    """A `PositionFile`, or memory where no file is available."""

    def write(self, slot: PositionKind, step: int, rng: Sequence[Buffer], data: bytes) -> None:
        """Record, for `step`, the present content of the buffers and the encoded data positions."""

    def read(self) -> dict[int, bytes]:
        """Return the payload of each recorded step."""

    def entries(self) -> list[PositionEntry]:
        """Return all entries."""


class PositionMemory:
    """Positions that die with the process; sufficient for a survivor."""

    def __init__(self) -> None:
        self._slots: dict[tuple[PositionKind, int], PositionEntry] = {}
        self._sequence = 0

    def write(self, slot: PositionKind, step: int, rng: Sequence[Buffer], data: bytes) -> None:
        """Record a step as `Positions.write` does."""
        key = (slot, step % (2 if slot is PositionKind.COMMITTED else 3))
        self._sequence += 1
        self._slots.pop(key, None)  # the newest entry must be the last
        self._slots[key] = PositionEntry(self._sequence, slot, step, pack(rng, data))

    def read(self) -> dict[int, bytes]:
        """Return the payload of each recorded step."""
        return {one.step: one.payload for one in self._slots.values()}

    def entries(self) -> list[PositionEntry]:
        """Return all entries."""
        return list(self._slots.values())


def not_known(step: int, parts: Parts, *, seeded: bool, lent: bool) -> str:
    """Return a text on the data that a rank lacks without a position of this step; "" if it lacks nothing."""
    unknown = [] if seeded else ["random numbers"]
    if parts.positions:
        unknown.append(f"data position ({', '.join(parts.positions)})")
    if not unknown:
        return ""
    instead = "those of its donor, which it repeats" if lent else "its own"
    seed = f"; with TrainState(seed=...) at {parts.made_at} random numbers are exact on any node"
    what, remedy = " and ".join(unknown), "" if seeded else seed
    return f"{what} of step {step} not known on this node: this rank goes on with {instead}{remedy}"
