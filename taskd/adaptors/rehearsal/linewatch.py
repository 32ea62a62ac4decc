"""Search for the script's line that changes a thing: done line by line, in a run of its own.

Rules:

1. From the first commit on, the interpreter reports each line of the script. Before each line, the watched things are
   compared with their former state. If one differs, the line before has changed it.
2. It is slow, and done for some steps only.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.rehearsal.variables import script_frames

Look = Callable[[FrameType, str], str]
"""Fingerprint of a named thing, in the view of a frame."""


class LineWatch:
    """A watch on `names`; `found(name, line)` receives each change."""

    def __init__(self, names: list[str], look: Look, found: Callable[[str, str], None]) -> None:
        self._names, self._look, self._found = names, look, found
        self._was: dict[str, str] = {}
        self._line = ""
        self._busy = False

    def start(self, frame: FrameType | None) -> None:
        """Start watching, also in the script's functions that are running now."""
        for one in script_frames(frame):
            if not self._line:
                self._line = f"{one.f_code.co_filename}:{one.f_lineno}"
            one.f_trace = self._trace
        sys.settrace(self._trace)

    @staticmethod
    def stop() -> None:
        """Stop watching: enough is known."""
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not is_users(frame.f_code.co_filename):
            return None
        if event in ("line", "return") and not self._busy:
            self._busy = True
            try:
                self._compare(frame)
            finally:
                self._busy = False
            self._line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return self._trace

    def _compare(self, frame: FrameType) -> None:
        for name in self._names:
            now = self._look(frame, name)
            if now:
                if self._was.get(name, now) != now:
                    self._found(name, self._line)
                self._was[name] = now
            else:
                self._was.pop(name, None)
