"""A worker that lives for so long: `lives.py BOX SECONDS`."""

import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import Recorder

Recorder().attach(Path(sys.argv[1]), 0, 0)
time.sleep(float(sys.argv[2]))
