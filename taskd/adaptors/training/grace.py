"""Grace period for an optimizer inside its step, before a fault elsewhere breaks this process's collectives.

Where ranks hold different parts of the state, peers communicate inside the optimizer's step (ZeRO-1). The ranks of a
replica set without the lost rank can still complete that step. If it were broken off, none of them would have a whole
state.
"""

import time
from typing import Final, Protocol

from taskd.adaptors.training.recovery import StateRecovery

GRACE_S: Final = 0.25
_LOOK_S: Final = 0.001


class Inside(Protocol):
    """A resilient function; `inside` is true while the main thread is inside of it."""

    inside: bool
    recovery: StateRecovery


def await_step(function: Inside | None, *, limit_s: float = GRACE_S) -> bool:
    """Wait until no optimizer is inside its step; return whether that happened within `limit_s`.

    The control thread calls this. If every rank holds the whole state, it does not wait.
    """
    end_s = time.monotonic() + limit_s
    while function is not None and function.inside and _steps(function.recovery):
        if time.monotonic() > end_s:
            return False
        time.sleep(_LOOK_S)  # polled, because a notification by the main thread would cost time in each step
    return True


def _steps(recovery: StateRecovery) -> bool:
    return bool(recovery.replicas.name) and recovery.in_optimizer
