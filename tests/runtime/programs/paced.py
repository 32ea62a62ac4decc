"""A process that simulates training: `paced.py BOX OWN_MS WAITED_MS`, until it is killed."""

import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.runtime.box.shim import core
from taskd.wire.kinds import JobRank

GLOO_ALLREDUCE = 1 | 1 << 8
recorder = Recorder()
recorder.attach(Path(sys.argv[1]), JobRank(0), 0)
recorder.phase(BoxPhase.TRAINING)
own_s, waited_s = float(sys.argv[2]) / 1000, float(sys.argv[3]) / 1000
step = 0
while True:
    time.sleep(own_s)
    first = core().taskd_enter(GLOO_ALLREDUCE, 7, 4, 0, -1)
    time.sleep(waited_s / 2)
    second = core().taskd_enter(GLOO_ALLREDUCE, 7, 4, 0, -1)
    core().taskd_leave(first)
    time.sleep(waited_s / 2)
    core().taskd_leave(second)
    step += 1
    recorder.step(step)
