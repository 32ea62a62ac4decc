"""Watch over `torch.save` for a limited time: its writer in C++ raises no audit event.

Rules:

1. Its two public names are replaced. Calls by a name imported before (`from torch import save`) are not detected.
   Neither are other libraries' writers in C++ or Rust.
2. The file is reported before it is emptied.
"""

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from taskd.runtime.worker.file_events import EMPTIES, Listener

_WRITERS: Final = (("torch", "save"), ("torch.serialization", "save"))
"""Module and function. The second argument, `f`, is the file."""


class TorchWriter:
    """Watch that calls `note(verb, path)` before `torch.save` empties a file, on the thread that calls it."""

    def __init__(self, note: Listener) -> None:
        self._note = note
        self._watched: list[tuple[ModuleType, str, Callable[..., Any], Callable[..., Any]]] = []

    def start(self) -> None:
        """Start to watch."""
        for name, attribute in _WRITERS:
            module = sys.modules.get(name)
            own = None if module is None else vars(module).get(attribute)
            if module is not None and callable(own):
                watching = self._watching(own)
                self._watched.append((module, attribute, own, watching))
                setattr(module, attribute, watching)

    def stop(self) -> None:
        """Stop watching. A function that other code has replaced meanwhile stays replaced."""
        for module, attribute, own, watching in self._watched:
            if vars(module).get(attribute) is watching:
                setattr(module, attribute, own)
        self._watched = []

    def _watching(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def watching(*args: Any, **kwargs: Any) -> Any:
            path = args[1] if len(args) > 1 else kwargs.get("f")
            if self._watched and isinstance(path, str | os.PathLike):
                self._note(EMPTIES, os.fspath(path))
            return own(*args, **kwargs)

        return watching
