"""`taskd blackbox` as another user calls it: `stranger.py TARGET`.

The first call is this user's, without output: it imports modules that the other user may not read.
"""

import contextlib
import io
import os
import sys

from taskd.cli.blackbox import blackbox

with contextlib.redirect_stdout(io.StringIO()):
    blackbox([sys.argv[1]])
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
sys.exit(blackbox([sys.argv[1]]))
