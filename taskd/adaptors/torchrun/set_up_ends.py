"""Errors that end a rank's script in its set-up: one page the first time, one line when the same error repeats.

Rules:

1. A rank that ends as its predecessor did writes one line in place of its traceback. The same error must come from the
   same lines. Parts that differ each time (numbers, temporary names) do not count.
2. Only the text of the interpreter or of torch is left out. A hook of the script's own is called as always.
3. A damaged file that was being read is named, because its reader's error mostly is not about it. A file that is only
   in reach of the failing code may be healthy. The text states that, and does not advise to remove it.
"""

import io
import os
import sys
import sysconfig
import zipfile
from hashlib import blake2b
from itertools import takewhile
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
_STREAM_ENDS: Final = ("EOFError", "JSONDecodeError")
"""Errors that a closed connection or a text from anywhere raises as well as a torn file."""
_OF_NO_FILE: Final = ("", "EOF when reading a line")
"""Texts of an EOFError of a closed connection, and of `input`."""
_READERS: Final = frozenset(
    ("torch", "zipfile", "pickle", "safetensors", "json", "numpy", "gzip", "bz2", "lzma", "_compression", "compression")
)
"""Packages and modules that read files: a file name in their variables is the file that they read."""
_ARGUMENTS: Final = ("f", "fp", "file", "fname", "filename", "path", "filepath")
_LIBRARIES: Final = ("<", *{sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_TORCHS_HOOK: Final = "_distributed_excepthook"


def with_file(said: str, error: BaseException) -> str:
    """Return the error in one line; if it comes from a damaged file, name the file and the remedy."""
    file, certain = _find(error)
    if not file or file in said:
        return said
    if not certain:
        return f"{said.rstrip('.')}; the file {file} may be damaged: check it"
    return (
        f"{said.rstrip('.')}; the file {file} is torn or damaged: remove it or put a whole one in its place "
        "(taskd.save never leaves a torn one)"
    )


def torn_file(error: BaseException) -> str:
    """Return the file whose content the error is about, or may be; "" for none."""
    return _find(error)[0]


def _find(error: BaseException) -> tuple[str, bool]:
    """Return the file of `torn_file`, and whether it is certain."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names.isdisjoint(_TORN) and not any(text in str(error) for text in _TORN_TEXTS):
        return "", False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)][::-1]
    reading = list(takewhile(_is_reader, frames))
    for frame in reading:
        for name, value in reversed(frame.f_locals.items()):
            if found := _opened(value) or _named(name, value):
                return found, True
    streams_only = not names.isdisjoint(_STREAM_ENDS)
    if streams_only and str(error) in _OF_NO_FILE:
        return "", False
    callers = frames[len(reading) :][:2]
    for frame in callers:
        streams = {id(value): value for value in frame.f_locals.values() if _is_stream(value)}
        if streams:
            found = _opened(next(iter(streams.values()))) if len(streams) == 1 else ""
            return found, not streams_only and not reading and frame is callers[0]
    if callers and not streams_only and (reading or "SafetensorError" in names):
        found = next(filter(None, (_named(*item) for item in callers[0].f_locals.items())), "")
        return found, False
    return "", False


def _is_reader(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _READERS


def _is_stream(value: Any) -> bool:
    """Return whether `value` is a file that was read. The error that is passed on may have closed it."""
    if not isinstance(value, io.IOBase):
        return False
    return "r" in str(getattr(value, "mode", "r")) if value.closed else value.readable()


def _opened(value: Any) -> str:
    """Return the path of a file that was opened; "" if this is none."""
    if _is_stream(value):
        return _existing(getattr(value, "name", ""))
    return _existing(value.filename) if isinstance(value, zipfile.ZipFile) else ""


def _named(name: str, value: Any) -> str:
    """Return the path that a variable of this name means; "" if it means none."""
    return _existing(value) if name in _ARGUMENTS else ""


def _existing(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        return ""
    path = os.fspath(value)
    return path if isinstance(path, str) and os.path.isfile(path) else ""


class FormerEnd:
    """Error that ended the previous process in its set-up. `path`: file that keeps it, None for nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def is_repeated(self, error: BaseException) -> bool:
        """Return whether this error repeats the former one, and keep it as the former one."""
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
        """Write the line about a repeated error to stderr."""
        frames = list(walk_tb(error.__traceback__))
        own = [one for one in frames if not one[0].f_code.co_filename.startswith(_LIBRARIES)] or frames
        where = f" ({_place(*own[-1])})" if own else ""
        sys.stderr.write(f"[rank{rank}]: fails in its set-up as the process before it did: {said}{where}\n")
        sys.stderr.flush()


def is_stock(hook: Any) -> bool:
    """Return whether only the interpreter's or torch's own text would be shown."""
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
