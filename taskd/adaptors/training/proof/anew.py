"""Restart of all processes from the beginning, once a proof has found that the training is not exact."""

import threading
from typing import Final

from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.tripwire import Interrupted
from taskd.errors import RecoveryError

_LIMIT_S: Final = 60.0
"""Time limit for a restart by the manager, which checks for this request within seconds."""


def start_anew(runtime: Runtime, reason: str) -> None:
    """Request that all processes start anew, without counting a restart, and wait for it.

    Raises:
        Interrupted: the restart comes, or a fault has come meanwhile.
        RecoveryError: no manager starts this process anew.
    """
    runtime.refusals.ask_anew(reason)
    ended = threading.Event()
    for _ in range(int(_LIMIT_S / 0.1)):
        ended.wait(0.1)
        if runtime.link.interrupted:
            raise Interrupted
    raise RecoveryError(f"{reason}, and no manager has started this process anew within {_LIMIT_S:g} s")
