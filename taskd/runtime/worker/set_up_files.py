"""Files that a rank's set-up empties and folders that it makes, recorded as they come.

A new process of the rank runs the set-up again, in the middle of the job. `proof/set_up_writes.py` judges these.

Rules:

1. Only a process that begins with the job records them, and only if the job checks itself.
2. Events of the main thread count, from before the script's first line until the training function is entered.
"""

import os
import sys
import threading
import time
from typing import Final, NamedTuple

from taskd.runtime.worker.file_events import EMPTIES, VERBS, is_compilers, listen, stop_listening

_MOST: Final = 200
_FRAMES: Final = 40


class FileEvent(NamedTuple):
    """One event.

    Attributes:
        path: absolute.
        frames: file and line of each frame that has led to it, innermost first.
        exclusive: for a folder, True if it must not have existed before.
        unix_s: time of the event.
    """

    path: str
    frames: tuple[tuple[str, int], ...]
    exclusive: bool
    unix_s: float


class SetUpFiles:
    """File events of this process's set-up.

    Attributes:
        emptied: files that were opened with truncation, each once.
        made: folders that were not there before.
    """

    def __init__(self) -> None:
        self.emptied: dict[str, FileEvent] = {}
        self.made: dict[str, FileEvent] = {}

    def start(self) -> None:
        """Record from now on: the script is about to begin."""
        listen(self._note)

    def stop(self) -> None:
        """Record no more: the training function is about to be entered."""
        stop_listening(self._note)

    def _note(self, verb: str, path: str) -> None:
        noted = self.emptied if verb == EMPTIES else self.made if verb == VERBS["os.mkdir"] else None
        if noted is None or len(noted) >= _MOST or threading.current_thread() is not threading.main_thread():
            return
        if is_compilers():
            return
        path = os.path.abspath(path)
        if verb == EMPTIES or not os.path.lexists(path):
            frames, exclusive = _frames()
            noted.setdefault(path, FileEvent(path, frames, exclusive, time.time()))


def _frames() -> tuple[tuple[tuple[str, int], ...], bool]:
    found: list[tuple[str, int]] = []
    exclusive = True
    frame = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if code.co_name in ("mkdir", "makedirs"):
            exclusive = exclusive and not frame.f_locals.get("exist_ok", False)
        found.append((code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found), exclusive


_of_process: list[SetUpFiles] = []


def note_set_up_files() -> None:
    """Start to record the file events of this process."""
    if not _of_process:
        _of_process.append(SetUpFiles())
        _of_process[0].start()


def noted_set_up_files() -> SetUpFiles | None:
    """Return the recorded events of this process; None if they were not recorded."""
    return _of_process[0] if _of_process else None
