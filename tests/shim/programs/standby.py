"""A template whose forked child has a box, a handler, and then a fault in it: `standby.py LIBRARY BOX`."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from taskd.runtime.box.recorder import Recorder
from taskd.wire.kinds import JobRank

crash = ctypes.CDLL(sys.argv[1])
r = Recorder()
pid = os.fork()
if pid == 0:
    r.attach(Path(sys.argv[2]), JobRank(0), 0)
    signal.signal(signal.SIGTERM, lambda *_: crash.crash(b"segv"))
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
sys.exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
