"""Integrity of a shared library before the dynamic loader maps it: a page that a cut file lacks is a SIGBUS.

Rules:

1. All parts that its headers name must lie within the file, the table of sections too. That table stands last, so a cut
   anywhere is detected. The loader checks the meaning of the bytes, and answers with an error.
2. It must be for the same kind of machine as the program that runs here.
"""

import os
import struct
from pathlib import Path
from typing import Final

from taskd.runtime.folders.regular import open_record

_HEADER: Final = struct.Struct("=4s2s12xH12x2Q6x4H2x")
"""Magic, class and byte order, machine, offsets of both tables, size and number of their entries (elf(5))."""
_SEGMENT: Final = struct.Struct("=8xQ16xQ16x")
"""Offset in the file, and number of bytes."""
_PROGRAM: Final = Path("/proc/self/exe")


def flaw(path: Path) -> str:
    """Return a library's flaw, for a sentence that begins with its path; "" if the loader may have it."""
    try:
        with open_record(path) as file:
            size, start = os.fstat(file.fileno()).st_size, file.read(_HEADER.size)
            if len(start) < _HEADER.size:
                return f"is cut short: it has {size} bytes"
            magic, kind, machine, segments, sections, each, count, each_section, section_count = _HEADER.unpack(start)
            if magic != b"\x7fELF":
                return "is no shared library"
            if (kind, machine) != _here() or each != _SEGMENT.size:
                return "is for another kind of machine"
            file.seek(segments)
            table = file.read(each * count)
    except (OSError, ValueError, OverflowError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    ends = [sum(_SEGMENT.unpack_from(table, at)) for at in range(0, len(table) - each + 1, each)]
    needed = max([segments + each * count, sections + each_section * section_count, *ends])
    return f"is cut short: it has {size} bytes, and its headers name {needed}" if needed > size else ""


def _here() -> tuple[bytes, int]:
    with _PROGRAM.open("rb") as file:
        return _HEADER.unpack(file.read(_HEADER.size))[1:3]
