"""What a rank's script ends with in its set-up: one page the first time, one line when it is the same again.

Rules:

1. A rank that ends as its predecessor did, with the same error raised in the same lines, writes one line in place of
   its traceback. What differs each time (numbers, temporary names) does not count.
2. Only what the interpreter or torch would show is left out. A hook of the script's own is called as always.
3. A damaged file that was being read is named: its reader's error mostly is not about it.
"""

import io
import os
import sys
import sysconfig
import zipfile
from hashlib import blake2b
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, Final

from taskd.adaptors.faults import in_one_line
from taskd.core.recovery.error_texts import without_what_varies

_TORN: Final = ("EOFError", "UnpicklingError", "BadZipFile", "BadGzipFile", "JSONDecodeError", "SafetensorError")
_TORN_TEXTS: Final = (
    "PytorchStreamReader",
    "failed finding central directory",
    "unexpected EOF",
    "storage has wrong byte",
)
_ARGUMENTS: Final = ("f", "fp", "file", "fname", "filename", "path", "filepath")
_LIBRARIES: Final = ("<", *{sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_TORCHS_HOOK: Final = "_distributed_excepthook"


def with_file(said: str, error: BaseException) -> str:
    """The error in one line, with the damaged file that it comes of, if it does, and what to do."""
    file = torn_file(error)
    if not file or file in said:
        return said
    return (
        f"{said.rstrip('.')}; the file {file} is torn or damaged: remove it or put a whole one in its place "
        "(taskd.save never leaves a torn one)"
    )


def torn_file(error: BaseException) -> str:
    """The file whose content the error is about; "" for none."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names.isdisjoint(_TORN) and not any(text in str(error) for text in _TORN_TEXTS):
        return ""
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        for name, value in reversed(frame.f_locals.items()):
            found = _path_of(name, value)
            if found:
                return found
    return ""


def _path_of(name: str, value: Any) -> str:
    if isinstance(value, io.IOBase) and not value.closed and value.readable():
        value = getattr(value, "name", "")
    elif isinstance(value, zipfile.ZipFile):
        value = value.filename
    elif name not in _ARGUMENTS:
        return ""
    if not isinstance(value, str | os.PathLike):
        return ""
    path = os.fspath(value)
    return path if isinstance(path, str) and os.path.isfile(path) else ""


class FormerEnd:
    """How the process before this one ended in its set-up. `path`: where it is kept, None for nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def is_repeated(self, error: BaseException) -> bool:
        """Whether this error is the former one again. It is the former one from now on."""
        if self._path is None:
            return False
        mark = _mark(error)
        try:
            known = self._path.read_text() if self._path.exists() else ""
            self._path.write_text(mark)
        except OSError:
            return False
        return known == mark

    @staticmethod
    def tell(error: BaseException, said: str, rank: int) -> None:
        """Write the line."""
        frames = list(walk_tb(error.__traceback__))
        own = [one for one in frames if not one[0].f_code.co_filename.startswith(_LIBRARIES)] or frames
        where = f" ({_place(*own[-1])})" if own else ""
        sys.stderr.write(f"[rank{rank}]: fails in its set-up as the process before it did: {said}{where}\n")
        sys.stderr.flush()


def is_stock(hook: Any) -> bool:
    """Whether only the interpreter's or torch's own text would be shown."""
    while getattr(hook, "__name__", "") == _TORCHS_HOOK and getattr(hook, "__closure__", None):
        kept = dict(zip(hook.__code__.co_freevars, hook.__closure__, strict=True))
        hook = kept["old_hook"].cell_contents if "old_hook" in kept else None
    return hook is sys.__excepthook__


def _mark(error: BaseException) -> str:
    lines = [_place(frame, line) for frame, line in walk_tb(error.__traceback__)]
    told = without_what_varies("\n".join([in_one_line(error), *map(str, getattr(error, "__notes__", ()))]))
    return blake2b("\n".join([*lines, told]).encode(errors="replace"), digest_size=16).hexdigest()


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
