"""A worker whose children are programs of their own, with and without the gate, and write in every way there is."""

import os
import subprocess
import sys

from tests.shim.armed import GATE, PROGRAMS
from tests.shim.programs.writes import r

r.step(10)
command = [sys.executable, str(PROGRAMS / "writes.py")]
for environment in (os.environ, {**os.environ, "LD_PRELOAD": str(GATE)}):
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (out.stdout, out.stderr) == ("False\n", "")
