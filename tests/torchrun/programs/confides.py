"""A script that shows its environment, as trackers of experiments do, and is killed once."""

import os
import signal
import sys
from pathlib import Path

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
shown = repr(dict(os.environ)).encode() + Path("/proc/self/environ").read_bytes()
Path(sys.argv[1], "first" if first else "second").write_bytes(shown)
if first:
    os.kill(os.getpid(), signal.SIGKILL)
