"""The script's printed lines, each with its step and the script's line that prints it.

Rules:

1. Lines of `print` and of `logging` are recorded, in this process alone: not those of taskd, of bars, or of libraries.
2. Output goes where it went before, unchanged.
"""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from taskd.adaptors.groups.sites import is_users

Hear = Callable[[str, str], None]
"""Callback that receives each line, and `file:line` of the code that has printed it."""


def listen(hear: Hear) -> None:
    """Listen to standard output and standard error from now on."""
    for stream in (sys.stdout, sys.stderr):
        _listen_to(stream, hear)


def _listen_to(stream: Any, hear: Hear) -> None:
    own, begun, process = stream.write, [""], os.getpid()

    def write(text: str) -> Any:
        if os.getpid() == process:
            line = _printing_line(sys._getframe(1))
            if line:
                *whole, begun[0] = (begun[0] + text).split("\n")
                for one in whole:
                    if one.strip():
                        hear(one.rstrip(), line)
        return own(text)

    try:
        stream.write = write
    except AttributeError:  # a stream of the script's own, of a kind that cannot be listened to
        return


def _printing_line(frame: FrameType | None) -> str:
    """Return `file:line` of the script, if it prints or logs; else ""."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "logging":
        frame = frame.f_back
    if frame is None or not is_users(frame.f_code.co_filename):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
