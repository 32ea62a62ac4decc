"""Record of where a loader's pass stood one batch ago, for a script that fetches a batch ahead of its steps.

Rules:

1. A prefetcher holds a batch that no step has used yet. A recovery makes the prefetcher anew, so its loader must hand
   out that batch again. The place to record is therefore that of the batch before.
2. The end of a pass counts as a batch as long as nothing follows it, since a prefetcher requests one there too. In a
   loop over several passes the first batch of the next pass takes its place.
3. A step in which the script requests nothing has used the held batch: its prefetcher detects the end of the data.
4. `proof/ahead.py` detects whether a batch is fetched ahead. Until then the loader is followed. A batch that another
   thread fetches is ahead by chance, and is not followed.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from taskd.adaptors.training.data.passes import Pass

MOST_AHEAD: Final = 1
"""Most batches ahead that a recovery can have handed out again. With more, the end of a pass would be ambiguous."""
_STEPS: Final = 3
"""Number of first steps in each of which a batch must be requested."""


class FetchedAhead:
    """Batches of one loader that its script fetches ahead.

    Attributes:
        batches: number of these batches; they are handed out again after a recovery.
        due_step: returns the number of the step under way, also while it is committed; from 1.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.due_step: Callable[[], int] = int
        self._follows = self._has_ended = self._by_others = False
        self._thread = 0
        self._asked_in: deque[int] = deque(maxlen=_STEPS)
        self._newest: deque[Pass] = deque(maxlen=MOST_AHEAD + 1)
        self._remembered: Pass | None = None

    def follow(self) -> None:
        """Record where the pass stands until `settle` is called: the number of batches ahead is not known yet."""
        self._thread, self._follows, self.batches = threading.get_ident(), True, 0

    def settle(self, batches: int) -> None:
        """End the trial: `batches` batches are fetched ahead."""
        self.batches, self._follows, self._remembered = batches, False, None

    @property
    def records(self) -> bool:
        """True if `handed` and `ended` must be called."""
        return self._follows or self.batches > 0

    def handed(self, now: Pass) -> None:
        """Record a batch. `now` is the pass that it belongs to, and counts it."""
        if self._has_ended:
            self._has_ended = False
            self._newest.pop()
        self._newest.append(replace(now))
        self._ask()

    def ended(self, now: Pass) -> None:
        """Record that the script has requested a batch at the end of a pass, for the first time."""
        if not self._has_ended:
            self._newest.append(replace(now))
            self._has_ended = True
            self._ask()

    def begin_at(self, place: Pass | None) -> None:
        """Forget what was recorded. The next batch is the first, or the first behind `place`."""
        self._newest.clear()
        self._has_ended = False
        if not self._follows:  # a repeated step is compared with the requests of its first run
            self._asked_in.clear()
        if place is not None:
            self._newest.append(replace(place))

    def in_hand(self, step: int) -> int:
        """Return how many batches no step has used, once `step` is committed."""
        return self.batches if self._asked_in and self._asked_in[-1] >= step else 0

    def place_of(self, now: Pass) -> Pass:
        """Return where the steps stand once the step under way is committed, in a pass that stands at `now`."""
        held = self.in_hand(self.due_step())
        if not held or len(self._newest) <= held or (now.over and not self._has_ended):
            return now
        return self._newest[-1 - held]

    def left_at(self, now: Pass) -> int:
        """Return how many batches of the pass the committed steps have used."""
        return now.handed - (0 if self._has_ended else self.in_hand(self.due_step() - 1))

    # For the trial.

    @property
    def is_used(self) -> bool:
        """True if a batch was requested since `follow`."""
        return bool(self._asked_in)

    @property
    def is_unknown(self) -> bool:
        """True if the place of the steps is not known yet."""
        return self._follows and bool(self._newest)

    def remember(self) -> None:
        """Remember, at a commit, where the pass stood one batch ago, if each of the last steps requested a batch."""
        steps = range(self.due_step() - 1, self.due_step() - _STEPS, -1)
        known = len(self._newest) > MOST_AHEAD and set(steps) <= set(self._asked_in)
        self._remembered = self._newest[-1 - MOST_AHEAD] if known else None

    @property
    def remembered(self) -> Pass | None:
        """Place of the batch before the newest at `remember`, if the same thread has requested a batch since."""
        asked = bool(self._asked_in) and self._asked_in[-1] >= self.due_step()
        return self._remembered if asked and not self._by_others else None

    # Inside.

    def _ask(self) -> None:
        self._by_others = self._by_others or threading.get_ident() != self._thread
        step = self.due_step()
        if not self._asked_in or self._asked_in[-1] != step:
            self._asked_in.append(step)
