"""Low priority for a dying process: the kernel frees its memory after the work of processes that recover.

Rules:

1. Freeing one GiB keeps a core busy for some tenths of a second, and the scheduler treats it like any other work. With
   all cores busy, a recovery at the same time took twice as long.
2. Only a process without a surviving thread is touched: each thread has begun to end, or has a SIGKILL pending. A life
   futex reports an exec as well, which the process survives.
3. It is an optimization: refusals of the kernel are ignored.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NICENESS: Final = 10
"""Nice value that leaves a tenth of the others' share: a host without a free core still frees the memory."""
_LOOKS: Final = 20
"""Number of checks. A thread that has taken its SIGKILL and has not begun to end appears alive for microseconds."""
_FLAGS, _PENDING = 9 - 3, 31 - 3
"""Places behind the command's name in /proc/PID/stat, which proc(5) counts from 1."""
_PF_EXITING: Final = 0x4
_SIGKILL_BIT: Final = 1 << 8


def make_way(pid: int) -> bool:
    """Lower the priority of a process that is ending; False if it is not ending, is gone, or may not be touched."""
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
