"""Question that all ranks answer together, in bounded time, over the store of the default group.

Rules:

1. The first decision that is written stands. It is "yes" if every rank has given the same answer. Else it is the reason
   of the first rank that objects, or of the first that has waited for too long.
2. No rank waits in a collective, and no rank holds the store's connection: the training's own threads use it too.
3. A store that fails gives no answer: that is a reason like any other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch.distributed import Store

AGREED: Final = "yes"
_LONGEST_POLL_S: Final = 1.0
_POLL_S: Final = 0.002
_POLL_S_PER_RANK: Final = 2e-5
"""Pause per rank: all ranks together poll 50,000 times a second, until the pause reaches `_LONGEST_POLL_S`."""


@dataclass(frozen=True)
class Agreement:
    """Ranks that answer, and the store of their answers.

    Args:
        store: a store that all ranks share.
        prefix: beginning of the names of all keys; no other agreement has it.
        rank: rank of this process.
        world_size: number of ranks that answer.
        waiting: called repeatedly while this rank waits; an error that it raises ends the wait.
    """

    store: Store
    prefix: str
    rank: int
    world_size: int
    waiting: Callable[[], None]

    def ask(self, question: str, answer: str, limit_s: float, *, against: str = "") -> str:
        """Return `AGREED` if every rank has given `answer`, else the reason. `against`: this rank's reason to object.

        All ranks return the same, except where the store fails.
        """
        try:
            return self._ask(f"{self.prefix}/{question}", answer, limit_s, against)
        except RuntimeError as error:
            return self._failed(error)

    def object(self, question: str, reason: str) -> str:
        """Reject a question without asking it, and return the decision. This does not wait for other ranks."""
        try:
            return self._decide(f"{self.prefix}/{question}", f"rank {self.rank}: {reason}")
        except RuntimeError as error:  # the other ranks then reach their time limit
            return self._failed(error)

    def _ask(self, key: str, answer: str, limit_s: float, against: str) -> str:
        if against:
            return self._decide(key, f"rank {self.rank}: {against}")
        if self.store.add(f"{key}/{answer}", 1) == self.world_size:
            return self._decide(key, AGREED)
        end_s = time.monotonic() + limit_s
        pause_s = min(_LONGEST_POLL_S, max(_POLL_S, _POLL_S_PER_RANK * self.world_size))
        while not self.store.check([key]):
            self.waiting()
            if time.monotonic() >= end_s:
                return self._decide(key, f"rank {self.rank} has waited {limit_s:g} s for the others")
            time.sleep(pause_s)
        return self.store.get(key).decode()

    def _failed(self, error: RuntimeError) -> str:
        return f"rank {self.rank}: the store of the default group failed ({error})"

    def _decide(self, key: str, decision: str) -> str:
        return self.store.compare_set(key, "", decision).decode()
