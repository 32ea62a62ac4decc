"""A rank's recorder that commits a step every few milliseconds: `chaos_rank.py BOX RANK`."""

import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import BoxPhase, Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
r.attach(Path(sys.argv[1]), JobRank(int(sys.argv[2])), 0)
r.phase(BoxPhase.TRAINING)
step = 0
while True:
    r.step(step)
    step += 1
    time.sleep(0.002)
