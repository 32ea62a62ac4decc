"""A rank with a black box that runs statements before step 41 and after it: `watched.py BOX BEFORE AFTER`."""

import ctypes
import mmap  # noqa: F401 - for the statements, like `signal`
import os
import signal  # noqa: F401
import subprocess
import sys
import threading
import time
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.wire.kinds import JobRank

TORCH_ALLREDUCE = 1 | 1 << 8

r = Recorder()
r.attach(Path(sys.argv[1]), JobRank(0), 0)
r.phase(BoxPhase.TRAINING)
held, free = ctypes.PyDLL(None), ctypes.CDLL(None)
children: "list[subprocess.Popen[bytes]]" = []
enter, leave = r._core.taskd_enter, r._core.taskd_leave


def await_beats() -> None:
    """Wait for two beats of the core's own thread. At each, the core records the addresses of libraries."""
    from taskd.runtime.box.blackbox import Box

    box = Box.open(Path(sys.argv[1]))
    while box.read().native_count < 2:
        time.sleep(0.01)


def call_collectives() -> None:
    """Call hundreds of collectives, with one among them that does not end."""
    for number in range(300):
        leave(enter(TORCH_ALLREDUCE, 7 + number % 2, 64, 0, -1))
    enter(TORCH_ALLREDUCE, 7, 1, 0, -1)
    for _ in range(300):
        leave(enter(TORCH_ALLREDUCE, 8, 64, 0, -1))


def have_child(start_new_session: bool = False) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen(["sleep", "60"], start_new_session=start_new_session)
    children.append(child)
    return child


def have_children() -> None:
    """Start a child, one in its own session, and one of another thread; and one that has ended."""
    have_child()
    have_child(start_new_session=True)
    threading.Thread(target=lambda: have_child().wait(), daemon=True).start()
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    children.append(zombie)


def have_much() -> None:
    """Start some threads and children, and fill the ring with collectives."""
    for _ in range(4):
        have_child()
    for _ in range(30):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    for number in range(1100):
        leave(enter(TORCH_ALLREDUCE, 7 + number % 3, 64, 0, -1))


exec(sys.argv[2])
r.step(41)
exec(sys.argv[3])
