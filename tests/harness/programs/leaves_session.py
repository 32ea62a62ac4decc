"""Leaves a child in a session of its own that holds a pipe, and ends: `leaves_session.py PIPE`."""

import os
import signal
import sys

if os.fork():
    os._exit(0)
os.setsid()
pipe = open(sys.argv[1], "w")  # noqa: SIM115 - until it dies
pipe.write("ready")
pipe.flush()
signal.pause()
