"""A rank at step 41 whose libraries the native thread has recorded. It then runs the code WHAT: `rank.py BOX WHAT`."""

import ctypes  # noqa: F401 - for what it does, as is what follows
import os  # noqa: F401
import signal  # noqa: F401
import sys
import threading  # noqa: F401
import time
from pathlib import Path

from taskd.runtime.box.blackbox import Box
from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
r.attach(Path(sys.argv[1]), JobRank(3), 1)
r.phase(BoxPhase.TRAINING)
box = Box.open(Path(sys.argv[1]))
beats = box.read().native_count
while box.read().native_count < beats + 2:
    time.sleep(0.01)
box.close()
r.step(41)


def call_collectives() -> None:
    """Call some collectives of gloo's, then one that does not end, and commit step 42."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(20):
        dist.all_reduce(torch.ones(1000))
    r._core.taskd_enter(1 | 1 << 8, 77, 1 << 20, 0, 2)
    r.step(42)


exec(sys.argv[2])
