"""A process that dies makes way: the kernel takes its memory down behind the work of those that recover.

Rules:

1. To take down a GiB keeps a core busy for some tenths of a second, and that is work like any other to the scheduler.
   Where all cores are busy, a recovery at the same time took twice as long.
2. Only a process of which no thread lives on is touched: each has begun to end, or SIGKILL waits for it. A life futex
   tells of an exec as well, which the process survives.
3. It is nobody's duty: what the kernel refuses is let go.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NICENESS: Final = 10
"""A tenth of the others' share: on a host without a free core the memory is not kept for ever."""
_LOOKS: Final = 20
"""A thread that has taken its SIGKILL and has not begun to end looks alive for some microseconds."""
_FLAGS, _PENDING = 9 - 3, 31 - 3
"""Places behind the command's name in /proc/PID/stat, which proc(5) counts from 1."""
_PF_EXITING: Final = 0x4
_SIGKILL_BIT: Final = 1 << 8


def make_way(pid: int) -> bool:
    """Lower the priority of a process that is ending; False if it is not, or is gone, or may not be touched."""
    try:
        for _ in range(_LOOKS):
            threads = os.listdir(f"/proc/{pid}/task")
            if all(_is_ending(f"/proc/{pid}/task/{thread}/stat") for thread in threads):
                break
            os.sched_yield()
        else:
            return False
        for thread in threads:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(thread), NICENESS)
        # without a cgroup of its own a session is scheduled as one, and priorities hold within it alone
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
    except OSError:
        return False
    return True


def _is_ending(path: str) -> bool:
    try:
        fields = Path(path).read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(fields[_FLAGS]) & _PF_EXITING or int(fields[_PENDING]) & _SIGKILL_BIT)
