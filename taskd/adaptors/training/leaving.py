"""The end of a rank's interpreter: no thread of taskd or gloo may be active in it, however the script ended.

Rules:

1. If a thread returns from torch's code while the interpreter shuts down, Python ends it inside a C++ destructor. The
   process then aborts with "terminate called without an active exception" instead of the script's own status. So the
   main thread waits for gloo's threads (`groups/settling.py`) and for taskd's threads that call torch.
2. It waits after the script's own `atexit` functions, for at most `SETTLE_S`, mostly some milliseconds. It does so
   whether a script ends, fails, or calls `sys.exit`.
3. A rank that fails may have collectives under way to which no peer responds. If its threads are not idle within
   `IDLE_S`, these collectives are aborted, as the end of the process would do.
"""

import os
import sys
from typing import Final

from taskd.adaptors.groups.world import GroupWorld
from taskd.runtime.system import hidden

SETTLE_S: Final = 2.0
IDLE_S: Final = 0.2
_CALL_TORCH: Final = ("taskd-abort", "taskd-destroy", "taskd-digest", "taskd-verify")


def settle(world: GroupWorld, pid: int) -> None:
    """Keep the interpreter of process `pid` alive while threads need it. Its forked children have no such threads."""
    if os.getpid() != pid:
        return
    if has_failed() and not world.settle(IDLE_S):
        world.abandon()
    hidden.join(_CALL_TORCH, SETTLE_S)
    world.settle(SETTLE_S)


def has_failed() -> bool:
    """Return whether the interpreter has printed an uncaught exception."""
    return hasattr(sys, "last_value") or hasattr(sys, "last_exc")
