"""Stacks of a process in which no Python can run, as py-spy reads them from outside.

Rules:

1. py-spy is used if it is found, beside this interpreter or on the path. Without it the result is empty, and no error.
2. It stops the process for some milliseconds and needs the right to trace it, which a container may not give.
"""

import os
import shutil
import subprocess
import sys
import time
from typing import Final

_MOST_CHARS: Final = 64 << 10


def py_spy() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    beside = os.path.join(sys.prefix, "bin", "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def take_native(pid: int, timeout_s: float = 0.5) -> str:
    """Return the stacks of a process's threads, with native frames if possible; "" if none can be had.

    Blocks for `timeout_s` at most.
    """
    program, end_s = py_spy(), time.monotonic() + timeout_s
    if program is None:
        return ""
    command = [program, "dump", "--pid", str(pid)]
    plain = _run(command, timeout_s)
    text = _run([*command, "--native"], end_s - time.monotonic()) or plain  # reads symbols: much slower the first time
    return text[:_MOST_CHARS]


def _run(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
