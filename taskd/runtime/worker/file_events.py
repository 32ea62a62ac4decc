"""Python's audit events about files, in processes that check themselves: one hook, and its listeners.

Rules:

1. An audit hook cannot be removed. It is added with the first listener, and is idle while there is none.
2. Writers in C++ raise no event; `proof/torch_writer.py` watches that of `torch.save`.
"""

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

VERBS: Final[Mapping[str, str]] = {
    "os.remove": "removes",
    "os.rmdir": "removes",
    "shutil.rmtree": "removes",
    "os.rename": "renames",
    "os.truncate": "cuts",
    "shutil.move": "moves",
    "os.mkdir": "makes",
}
"""Effect of an event on its first argument."""
EMPTIES: Final = "empties"
WRITES: Final = "writes to"
_CACHES: Final = ("__pycache__", "torchinductor", "triton", "/dev/", "/proc/")
"""Files of the interpreter and of compilers."""
_COMPILERS: Final = ("torch._inductor.", "triton.", "torch.utils.cpp_extension")
"""Modules of compilers. Their calls count as theirs."""
Listener = Callable[[str, str], None]
_listeners: list[Listener] = []
_hooked: list[bool] = []


def listen(listener: Listener) -> None:
    """Call `listener(verb, path)` for each event from now on, on the thread that raises it."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_on_event)
    _listeners.append(listener)


def stop_listening(listener: Listener) -> None:
    """Remove a listener."""
    if listener in _listeners:
        _listeners.remove(listener)


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if not _listeners or (event != "open" and event not in VERBS):
        return
    verb = _of_open(args[2]) if event == "open" else VERBS[event]
    if not verb or not isinstance(args[0], str | bytes | os.PathLike):
        return
    path = os.fsdecode(args[0])
    if not any(cache in path for cache in _CACHES):
        for listener in tuple(_listeners):
            listener(verb, path)


def _of_open(flags: Any) -> str:
    if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
        return ""
    return EMPTIES if flags & os.O_TRUNC else WRITES


def is_compilers() -> bool:
    """Return whether a compiler has caused the present event, wherever the user has put its cache."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False
