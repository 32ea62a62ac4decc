"""Plays a job until the job ends, or until a signal ends this program: `player.py FOLDER MARK`."""

import sys
from contextlib import ExitStack
from pathlib import Path

from tests.launch import Launcher, end_as_by_an_error

end_as_by_an_error()
with ExitStack() as stack:
    launcher = Launcher(Path(sys.argv[1]), sys.argv[2])
    stack.callback(launcher.end_all)
    job = launcher.start(["sleep", "1000"])
    Path(sys.argv[1], "job").write_text(str(job.pid))
    job.wait()
