"""What a training function empties, removes or renames each time it is entered, by audit events of Python's.

The self-check enters the function once more in a healthy job: it must not do there what only a fault may do.

Rules:

1. Events of the thread that trains count, from the entry into the function until its first commit. What is opened for
   appending or reading, and folders that are made, are harmless.
2. Files of the interpreter's and of compilers' caches do not count.
3. An audit hook cannot be taken off: it is there only in processes that prove something, and idle afterwards.
4. Writers in C++, as torch.save's, raise no event and are not seen.
"""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from taskd.adaptors.groups.sites import script_line

_VERBS: Final[Mapping[str, str]] = {
    "os.remove": "removes",
    "os.rmdir": "removes",
    "shutil.rmtree": "removes",
    "os.rename": "renames",
    "os.truncate": "cuts",
    "shutil.move": "moves",
}
_CACHES: Final = ("__pycache__", "torchinductor", "triton", "/dev/", "/proc/")
_watched: "list[EntryWrites]" = []
"""The one that is told of events, if there is one."""
_hooked: list[bool] = []


class EntryWrites:
    """The first thing that a training function empties, removes or renames as it is entered.

    Attributes:
        found: `file:line`, a verb and a path; "" if there is nothing.
    """

    def __init__(self) -> None:
        self.found = ""
        self._thread = threading.get_ident()

    def start(self) -> None:
        """The function is called."""
        if not _hooked:
            _hooked.append(True)
            sys.addaudithook(_on_event)
        _watched[:] = [self]

    def stop(self) -> None:
        """Its first step is committed, or it was left."""
        _watched.clear()

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        """An event of this process."""
        if self.found or threading.get_ident() != self._thread:
            return
        if event == "open":
            path, _, flags = args
            verb = "empties" if isinstance(flags, int) and flags & os.O_TRUNC else ""
        else:
            path, verb = args[0], _VERBS.get(event, "")
        if not verb or not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if any(cache in name for cache in _CACHES):
            return
        self.stop()  # to look for the line may raise events
        self.found = f"{script_line()} {verb} {name} each time it is entered"


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if _watched and (event == "open" or event in _VERBS):
        _watched[0].note(event, args)
