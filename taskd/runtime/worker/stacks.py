"""Activity of this process's Python threads, found without stopping them and without any lock.

Rules:

1. `threading.enumerate` takes a lock, which the inspected thread may hold for good. So it is not called.
2. The result is bounded: it fits a message whatever the program does.
3. Nothing is kept: a frame holds everything that its function has.
"""

import sys
import threading
from types import FrameType
from typing import Final

from taskd.runtime.system import hidden
from taskd.wire.accounts import ThreadStack

MOST_THREADS: Final = 64
MOST_FRAMES: Final = 60
_DEEPEST: Final = 2000
_MOST_PATH_CHARS: Final = 160
_MOST_NAME_CHARS: Final = 80
_MOST_BYTES: Final = 128 << 10
"""Limit of all frames together, of the 200 KiB that one message may have."""


_training: int | None = None


def trains_here() -> None:
    """Record that the calling thread runs the training function: it counts as the main one from now on."""
    global _training  # noqa: PLW0603 - one per process
    _training = threading.get_ident()


def training_thread() -> int:
    """Return the thread that runs the training function, or the main one as long as none has."""
    return _training or threading.main_thread().ident or 0


def main_stack() -> tuple[str, ...]:
    """Return the training thread's frames, innermost first, each `file:line in function`."""
    frame = sys._current_frames().get(training_thread())
    return _frames(frame, _DEEPEST)


def all_stacks() -> tuple[ThreadStack, ...]:
    """Return the stacks of all threads but the calling one, the training thread in front."""
    main, asking = training_thread(), threading.get_ident()
    threads = vars(threading)["_active"]
    names = {ident: thread.name for ident, thread in list(threads.items())} | hidden.names()
    frames = sys._current_frames()
    order = sorted((ident for ident in frames if ident != asking), key=lambda ident: (ident != main, ident))
    stacks, left = [], _MOST_BYTES
    for ident in order[:MOST_THREADS]:
        name = _sendable(names.get(ident, f"thread {ident}")[:_MOST_NAME_CHARS])
        stack = _frames(frames[ident], MOST_FRAMES)
        left -= sum(len(text.encode()) for text in (name, *stack))
        if left < 0:
            break
        stacks.append(ThreadStack(name=name, stack=stack))
    return tuple(stacks)


def _frames(frame: FrameType | None, most: int) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < most:
        code = frame.f_code
        where = f"{_short(code.co_filename)}:{frame.f_lineno} in {code.co_name[:_MOST_NAME_CHARS]}"
        found.append(_sendable(where))
        frame = frame.f_back
    return tuple(found)


def _sendable(text: str) -> str:
    """Return a text that can be sent: a file's name may hold bytes that are no text."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _short(path: str) -> str:
    return path if len(path) <= _MOST_PATH_CHARS else f"…{path[1 - _MOST_PATH_CHARS :]}"
