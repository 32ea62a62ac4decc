"""A worker that loads libraries, each for itself, and runs a statement: `libraries.py BOX STATEMENT LIBRARY…`."""

import ctypes
import sys
from pathlib import Path

from taskd.runtime.box.recorder import Recorder
from taskd.wire.kinds import JobRank

r = Recorder()
r.attach(Path(sys.argv[1]), JobRank(0), 0)
libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL) for path in sys.argv[3:]]
exec(sys.argv[2])
