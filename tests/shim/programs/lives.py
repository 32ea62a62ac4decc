"""A worker that lives for so long: `lives.py BOX SECONDS`."""

import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import Recorder
from taskd.wire.kinds import JobRank

Recorder().attach(Path(sys.argv[1]), JobRank(0), 0)
time.sleep(float(sys.argv[2]))
