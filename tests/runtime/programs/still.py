"""A process that reports its start by a file and runs the given statements: `still.py READY STATEMENTS`."""

import os  # noqa: F401 - for the statements, like the following imports
import signal  # noqa: F401
import socket  # noqa: F401
import subprocess  # noqa: F401
import sys
import threading
import time
from collections.abc import Callable

from taskd.runtime.system.processes import call_me

first, second = threading.Lock(), threading.Lock()
first.acquire()
second.acquire()


def begin(work: Callable[[], object], name: str = "") -> None:
    """Run `work` in a thread of that name."""

    def run() -> None:
        if name:
            call_me(name)
        work()

    threading.Thread(target=run, daemon=True).start()


def spin() -> None:
    while True:
        pass


def beat() -> None:
    while True:
        time.sleep(0.05)


def come() -> None:
    """Run as taskd's threads do: each starts the next one and ends."""
    from taskd.runtime.system.hidden import HiddenThread

    time.sleep(0.02)
    HiddenThread(come, "taskd-reap")


open(sys.argv[1], "w").close()
exec(sys.argv[2])
