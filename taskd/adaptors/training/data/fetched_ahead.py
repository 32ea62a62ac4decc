"""Record of where a loader's pass stood one batch ago, for a script that fetches a batch ahead of its steps.

Rules:

1. A prefetcher holds a batch that no step has used yet. After a recovery it is made anew, so its loader must hand out
   that batch again: the place to record is that of the batch before.
2. The end of a pass counts as a batch as long as nothing follows it, since a prefetcher asks for one there, too. In a
   loop over several passes the first batch of the next pass takes its place.
3. `proof/ahead.py` finds out whether a batch is fetched ahead. Until then the loader is followed. A batch that another
   thread fetches is ahead by chance, and not followed.
"""

import threading
from collections import deque
from typing import Final

from msgspec.structs import replace

from taskd.adaptors.training.data.passes import Pass

MOST_AHEAD: Final = 1
"""Batches fetched ahead that a recovery can have handed out again.

At the end of a pass a script may ask once for the end, or once for each batch that it holds: with one batch, that is
the same.
"""


class FetchedAhead:
    """Batches of one loader that its script fetches ahead.

    Attributes:
        batches: how many; they are handed out again after a recovery.
        records: whether `handed` and `ended` are to be called.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.records = False
        self._follows = self._has_ended = self._by_others = False
        self._thread = 0
        self._handed = self._remembered_at = 0
        self._newest: deque[Pass] = deque(maxlen=MOST_AHEAD + 1)
        self._remembered: Pass | None = None

    def follow(self) -> None:
        """Record where the pass stands, until `settle`."""
        self._thread, self._follows, self.records = threading.get_ident(), True, True

    def settle(self, batches: int) -> None:
        """So many batches are fetched ahead."""
        self.batches, self._follows, self.records = batches, False, batches > 0
        self._remembered = None

    def handed(self, now: Pass) -> None:
        """Record a batch: `now` is the pass that it belongs to, and counts it."""
        if self._has_ended:
            self._has_ended = False
            self._newest.pop()
        self._newest.append(replace(now))
        self._handed += 1
        self._by_others = self._by_others or threading.get_ident() != self._thread

    def ended(self, now: Pass) -> None:
        """Record the end of a pass."""
        self._newest.append(replace(now))
        self._has_ended = True

    def begin_at(self, place: Pass | None) -> None:
        """Forget what was recorded. The next batch is the first, or the first behind `place`."""
        self._newest.clear()
        self._has_ended = False
        if place is not None:
            self._newest.append(replace(place))

    @property
    def in_hand(self) -> int:
        """Batches of the present pass that no step has used."""
        return 0 if self._has_ended else self.batches

    def place_of(self, now: Pass) -> Pass:
        """Return where the steps stand, of a pass that stands at `now`."""
        if not self.batches or len(self._newest) <= self.batches or (now.over and not self._has_ended):
            return now
        return self._newest[-1 - self.batches]

    # For the trial.

    @property
    def is_unknown(self) -> bool:
        """Whether the place of the steps is not known yet."""
        return self._follows and bool(self._newest)

    def remember(self) -> None:
        """A step is committed: remember where the pass stood one batch ago."""
        self._remembered = self._newest[-1 - MOST_AHEAD] if len(self._newest) > MOST_AHEAD else None
        self._remembered_at = self._handed

    @property
    def remembered(self) -> Pass | None:
        """Place of the batch before the newest, at `remember`, if a batch was fetched since by the same thread."""
        return None if self._by_others or self._handed == self._remembered_at else self._remembered
