"""Record of one pass over a loader's data."""

import logging

import msgspec

from taskd.adaptors.training.data.indices import GOLDEN, MASK
from taskd.adaptors.training.positions.seeds import mix

_log = logging.getLogger(__name__)


class Pass(msgspec.Struct, array_like=True):
    """One pass over the data.

    Attributes:
        root: source of the seeds of all passes of this loader.
        number: number of the pass, from 0; -1 before the first.
        epoch: epoch of the sampler, if it has one.
        loop: epoch of `state.epochs()`, -1 outside of it.
        handed: number of batches that were handed out to the script.
        over: whether it was exhausted, or its iterator released.
        left_at: batches after which the pass before was left unfinished, 0 if it was finished.
        starts: states of the generators that loader and samplers hold, as it began; once it is over, the present ones.
        sampler: `state_dict` of each stateful sampler as it began, encoded.
        is_mended: whether a new process must let counts of its batches go on, or keep names of its loops.
        numbers: integers of its samplers as it began; once it is over, the present values of those that they count.
        counted: names of the integers that the samplers count by themselves, as far as known (see `pass_numbers`).
        ahead: number of further batches that the script had fetched; they are handed out again.
    """

    root: int
    number: int = -1
    epoch: int | None = None
    loop: int = -1
    handed: int = 0
    over: bool = True
    left_at: int = 0
    starts: list[bytes] = msgspec.field(default_factory=list)
    sampler: list[bytes | None] = msgspec.field(default_factory=list)
    is_mended: bool = False
    ahead: int = 0
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    counted: list[str] = msgspec.field(default_factory=list)

    @property
    def is_left(self) -> bool:
        """True if it stands where the pass before was left."""
        return 0 < self.handed == self.left_at

    @property
    def seed(self) -> int:
        """Seed of its order and its workers."""
        return mix((self.root + (self.number + 1) * GOLDEN) & MASK)


def warn_of_skipping(name: str, resumed: int, handed: int) -> None:
    """Warn if a script takes more batches before its first work than those that loader `name` resumed behind."""
    if handed - resumed > resumed:
        _log.warning(
            "%s went on behind the %d batches that were handed out, and the script has passed over %d more: if it "
            "skips what was done by itself, they are left out of the training; skip nothing by hand",
            name,
            resumed,
            handed - resumed - 1,
        )
