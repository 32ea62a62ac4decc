"""A worker with a child: runs statements, then reports the child's pid as its step: `parents_worker.py STATEMENTS`."""

import os  # noqa: F401 - for the statements
import signal
import subprocess
import sys

from taskd.runtime.box.recorder import Recorder

child = subprocess.Popen(["sleep", "60"])
r = Recorder()
exec(sys.argv[1])
r.step(child.pid)
signal.pause()
