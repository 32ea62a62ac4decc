"""Shared memory that a dead process has left under a name of its script's choice, until it is removed.

Rules:

1. A script may make a segment by a fixed name in its set-up. The name is free only when the resource tracker of the
   previous process has removed the segment.
2. Random names, as libraries make them, can be no obstacle to any process.
"""

import os
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from taskd.runtime.system.pidfd import ProcessHandle

_SEGMENTS: Final = Path("/dev/shm")
_RANDOM: Final = ("psm_", "sem.", "torch_", "loky-", "nccl-", "cuda.shm.")
"""Beginnings of the names that Python, glibc, torch, joblib, NCCL and CUDA make up."""
_LOOK_S: Final = 0.005


def await_removal(cleaners: Iterable[int], timeout_s: float) -> None:
    """Wait until the processes `cleaners` have ended, while segments of this user are there that they may remove."""
    until_s = time.monotonic() + timeout_s
    left = _named_segments()
    with ExitStack() as stack:
        running = [ProcessHandle(pid) for pid in (cleaners if left else ())]
        for process in running:
            stack.callback(process.close)
        while left and time.monotonic() < until_s and any(process.runs() for process in running):
            time.sleep(_LOOK_S)  # no event reports the removal of a segment
            left &= _named_segments()


def _named_segments() -> set[str]:
    found = set[str]()
    try:
        for entry in os.scandir(_SEGMENTS):
            if not entry.name.startswith(_RANDOM) and entry.is_file(follow_symlinks=False):
                found |= {entry.name} if entry.stat(follow_symlinks=False).st_uid == os.geteuid() else set()
    except OSError:  # there is no such folder, or an entry has just gone
        return found
    return found
