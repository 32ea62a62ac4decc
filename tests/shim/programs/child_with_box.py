"""A worker whose forked child attaches to a box of its own: `child_with_box.py BOX`."""

import os
import signal
import sys
from pathlib import Path

from taskd.runtime.box.recorder import Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
if os.fork() == 0:
    r.attach(Path(sys.argv[1]), JobRank(8), 1)
    r.step(20)
    signal.pause()
r.step(10)
signal.pause()
