"""Time for an optimizer that is inside its step, as a fault elsewhere breaks this process's collectives.

Where ranks have different parts of the state, peers meet in the optimizer's step (ZeRO-1), and those of another replica
set than the lost rank's can still end it. Broken off, none of them would have a whole state.
"""

import time
from typing import Final, Protocol

from taskd.adaptors.training.recovery import StateRecovery

GRACE_S: Final = 0.25
_LOOK_S: Final = 0.001


class Inside(Protocol):
    """A resilient function, and whether the main thread is inside of it."""

    inside: bool
    recovery: StateRecovery


def await_step(function: Inside | None, *, limit_s: float = GRACE_S) -> bool:
    """Wait until no optimizer is inside its step; whether that came. Called by the control thread.

    Of a state that is whole on every rank nothing is waited for.
    """
    end_s = time.monotonic() + limit_s
    while function is not None and function.inside and _steps(function.recovery):
        if time.monotonic() > end_s:
            return False
        time.sleep(_LOOK_S)  # the main thread tells nobody: each step would pay for that
    return True


def _steps(recovery: StateRecovery) -> bool:
    return bool(recovery.replicas.name) and recovery.in_optimizer
