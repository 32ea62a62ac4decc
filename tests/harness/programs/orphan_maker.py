"""Ends, and leaves a child in a session of its own that tells its pid and reads what comes."""

import os
import sys

if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
sys.stdin.read()
