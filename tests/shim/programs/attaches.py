"""A worker that attaches by itself, twice, and waits: `attaches.py BOX`."""

import signal
import sys
from pathlib import Path

from taskd.runtime.box.recorder import Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
assert not r.attached
r.attach(Path(sys.argv[1]), JobRank(5), 2)
r.attach(Path(sys.argv[1]), JobRank(5), 2)
r.step(9)
signal.pause()
