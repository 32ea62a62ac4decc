"""The line of the user's script that has led to a call into torch."""

import functools
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Final

import torch

_BETWEEN: Final = (str(Path(torch.__file__).parent) + "/", str(Path(__file__).resolve().parents[2]) + "/", "<")
"""Paths of torch, of taskd, and of code without a file: never the user's code."""
_LIBRARIES: Final = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OTHERS: Final = set[str]()
"""Names of modules that `users_files` has found not to be the user's."""


def script_line() -> str:
    """Return `file:line` of the innermost frame that is the user's; of a library if none is."""
    return innermost(walk_stack(sys._getframe(1)))


def is_between(file: str) -> bool:
    """Return whether a file is torch's or taskd's, or no file at all."""
    return file.startswith(_BETWEEN)


def is_users(file: str) -> bool:
    """Return whether a file is the user's, and of no library."""
    return not is_between(file) and not file.startswith(_LIBRARIES)


def is_users_class(kind: type) -> bool:
    """Return whether a class is defined in a file of the user's."""
    return _is_users_module(kind.__module__) if isinstance(kind.__module__, str) else False


@functools.lru_cache(maxsize=4096)
def _is_users_module(name: str) -> bool:
    return is_users(str(getattr(sys.modules.get(name), "__file__", None) or "<none>"))


def users_files() -> list[str]:
    """Return the files of the script and of the user's modules that this process has imported, sorted.

    Takes 2 ms the first time. Later calls check only the modules imported since, so a template calls this before it
    forks.
    """
    found = set()
    for name in set(sys.modules) - _OTHERS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and not file.startswith(_BETWEEN + _LIBRARIES):
            found.add(file)
        elif name != "__main__":  # a template has another file here than its standbys
            _OTHERS.add(name)
    return sorted(found)


def innermost(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return `file:line` of the first of these frames, innermost first, that is the user's; of a library if none is."""
    return innermost_line((frame.f_code.co_filename, line) for frame, line in frames)


def innermost_line(lines: Iterable[tuple[str, int]]) -> str:
    """Return the same as `innermost`, for frames that were recorded by file and line."""
    of_library = ""
    for name, line in lines:
        if is_users(name):
            return f"{name}:{line}"
        if not of_library and not is_between(name):
            of_library = f"{name}:{line}"
    return of_library or "an unknown line"
