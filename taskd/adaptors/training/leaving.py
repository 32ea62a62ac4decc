"""The end of a rank's interpreter: nothing of taskd or gloo is under way in it, whatever the script has ended with.

Rules:

1. A thread that comes back from torch's code while the interpreter ends is ended inside a C++ destructor, and the
   process aborts: "terminate called without an active exception" in place of the script's own status. So the main
   thread waits for gloo's threads (`groups/settling.py`) and for those of taskd that call torch.
2. It waits after the script's own `atexit` functions, for at most `SETTLE_S`: mostly some milliseconds. A script that
   has come to its end, one that fails, and one that calls `sys.exit` are alike.
3. A rank that fails may have collectives under way which no peer answers. If its threads are not idle within `IDLE_S`,
   these collectives are broken off: the end of the process would do the same.
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
    """Keep the interpreter of process `pid` from ending under threads that need it. Its forked children have none."""
    if os.getpid() != pid:
        return
    if has_failed() and not world.settle(IDLE_S):
        world.abandon()
    hidden.join(_CALL_TORCH, SETTLE_S)
    world.settle(SETTLE_S)


def has_failed() -> bool:
    """Whether the interpreter has shown an exception that nobody has caught."""
    return hasattr(sys, "last_value") or hasattr(sys, "last_exc")
