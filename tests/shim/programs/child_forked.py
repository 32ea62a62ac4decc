"""A worker whose forked child writes in every way there is, and ends through the exit handlers."""

import os
import sys

from tests.shim.programs.writes import r, write

r.step(10)
pid = os.fork()
if pid == 0:
    assert not write(r)
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
assert r.attached
