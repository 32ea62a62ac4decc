"""Leaves a child in a session of its own that prints its pid and reads its input, and ends."""

import os
import sys

if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
sys.stdin.read()
