"""A worker that is busy for a while, then at step 1, then runs statements: `clocked.py BOX STATEMENTS`."""

import ctypes
import os
import signal
import sys
import threading  # noqa: F401 - for the statements, as is `held`
import time
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
r.attach(Path(sys.argv[1]), JobRank(0), 0)
held = ctypes.PyDLL(None)  # calls without releasing the GIL
free = ctypes.CDLL(None)
deadline = time.monotonic() + 0.6
while time.monotonic() < deadline:
    pass
r.step(1)


def nest(go: str) -> None:
    """Make three nested calls. The newest ends at once, and the other two when the file is there."""
    a = r._core.taskd_enter(1, 10, 100, 0, -1)
    b = r._core.taskd_enter(2, 20, 200, 0, -1)
    c = r._core.taskd_enter(3, 30, 300, 0, -1)
    r._core.taskd_leave(c)
    r.phase(BoxPhase.PAUSED)
    while not os.path.exists(go):
        time.sleep(0.01)
    r._core.taskd_leave(b)
    r._core.taskd_leave(a)
    r.phase(BoxPhase.REBUILDING)
    signal.pause()


def have_child(box: str) -> None:
    """Fork a child that has no box for some beats, and then this one."""
    if os.fork() == 0:
        time.sleep(0.5)
        r.attach(Path(box), JobRank(1), 0)
        r.step(2)
        while True:
            time.sleep(0.01)
    signal.pause()


exec(sys.argv[2])
