"""What is recorded of one pass over a loader's data."""

import logging

import msgspec

from taskd.adaptors.training.data.indices import GOLDEN, MASK
from taskd.adaptors.training.positions.seeds import mix

_log = logging.getLogger(__name__)


class Pass(msgspec.Struct, array_like=True):
    """One pass over the data.

    Attributes:
        root: what the seeds of all passes of this loader come from.
        number: which pass, from 0.
        epoch: the sampler's, if it has one.
        loop: the epoch of `state.epochs()`, -1 outside of it.
        handed: batches that the script has been given.
        over: whether it was exhausted, or its iterator given up.
        left_at: at how many batches the pass before was left unfinished, 0 if it was not.
        starts: the states of the generators that loader and samplers hold, as it began; once it is over, those now.
        sampler: the `state_dict` of each stateful sampler, encoded, as it began.
        is_mended: whether a new process must let counts of its batches go on, or keep names of its loops.
        numbers: integers of its samplers, as it began; once it is over, those that they count, now.
        counted: names of those that the samplers count by themselves, as far as known (see `pass_numbers`).
        ahead: how many more batches the script had fetched; they are handed out again.
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
        """Whether it stands where the pass before was left."""
        return 0 < self.handed == self.left_at

    @property
    def seed(self) -> int:
        """What its order and its workers draw from."""
        return mix((self.root + (self.number + 1) * GOLDEN) & MASK)


def warn_of_skipping(name: str, resumed: int, handed: int) -> None:
    """Log that a script takes more batches before its first work than the pass of loader `name` resumed behind."""
    if handed - resumed > resumed:
        _log.warning(
            "%s went on behind the %d batches that were handed out, and the script has passed over %d more: if it "
            "skips what was done by itself, they are left out of the training; skip nothing by hand",
            name,
            resumed,
            handed - resumed - 1,
        )
