"""The wait at the end of a process, until no thread of its groups needs the interpreter any more.

torch's gloo runs collectives on threads of its own, `pt_gloo_runloop` (`thread_names`). Such a thread first reports to
the main thread that the collective is done, and releases the collective's tensors afterwards. To free a tensor that
Python has used, it takes the interpreter's lock. If the interpreter is ending by then, Python (up to 3.13) ends the
thread inside a C++ destructor. The process then aborts: "terminate called without an active exception". So the main
thread sleeps, without the lock, until the kernel shows that each of these threads waits for work.

Rules:

1. `/proc` shows a thread's state. A thread that waits for work is in a futex call without a limit, as for a condition
   variable. One that waits for the interpreter's lock or for a peer has a limit. One that waits for a mutex has another
   operation.
2. Nothing is closed, woken or ended: peers may still be receiving data that this process has sent.
3. A thread has the name of the process until it has been on a core for the first time. On a loaded machine that can be
   long after its group was made, and a collective may wait for it. A thread that has hardly run is taken for such a
   thread.
4. Where the kernel does not show a thread's call, the thread counts as waiting for work, after one interval between
   checks.
"""

import os
import time
from typing import Final

from taskd.adaptors.groups.thread_names import FUTEX, WORKER, read_task

_OPERATION: Final = 0x7F
_WAIT_BITSET: Final = 9
_LOOK_S: Final = 0.002
_BUSY: Final = "busy"
_BEGUN_NS: Final = 1_000_000
"""Time on a core after which a thread has its own name, in nanoseconds."""


def settle(limit_s: float) -> bool:
    """Wait until all gloo threads were twice found waiting for work; return whether that came within `limit_s`."""
    end_s = time.monotonic() + limit_s
    before: dict[str, str] | None = None
    while seen := _workers():
        if seen == before and _BUSY not in seen.values():
            return True
        if time.monotonic() > end_s:
            return False
        before = seen
        time.sleep(_LOOK_S)  # without the interpreter's lock, which these threads may need
    return True


def _workers() -> dict[str, str]:
    """Return each worker thread and the address at which it waits for work; `_BUSY` if it does anything else."""
    found = {}
    unnamed = read_task(str(os.getpid()), "comm")
    for task in os.listdir("/proc/self/task"):
        name = read_task(task, "comm")
        if name == WORKER:
            found[task] = _waiting_at(task)
        elif name == unnamed and _begins(task):
            found[task] = _BUSY
    return found


def _begins(task: str) -> bool:
    """Return whether a thread is about to run, and has hardly run so far."""
    on_core_ns = read_task(task, "schedstat").partition(" ")[0]
    return on_core_ns.isdigit() and int(on_core_ns) < _BEGUN_NS and read_task(task, "syscall") == "running"


def _waiting_at(task: str) -> str:
    words = read_task(task, "syscall").split()
    if not words:
        return ""
    if FUTEX is None:
        return ""
    if len(words) < 5 or int(words[0]) != FUTEX:
        return _BUSY
    operation, limit = int(words[2], 16) & _OPERATION, int(words[4], 16)
    return words[1] if operation == _WAIT_BITSET and limit == 0 else _BUSY
