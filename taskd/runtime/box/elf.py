"""Whether a shared library is whole, before the dynamic loader maps it: a page that a cut file lacks is a SIGBUS.

Rules:

1. All that its headers name must lie within the file, the table of sections too: that stands last, so that a cut
   anywhere is seen. What the bytes mean is for the loader to say, which answers by an error.
2. It must be for the same kind of machine as the program that runs here.
"""

import os
import struct
from pathlib import Path
from typing import Final

from taskd.runtime.folders.regular import open_record

_HEADER: Final = struct.Struct("=4s2s12xH12x2Q6x4H2x")
"""Magic, class and order of bytes, machine, where both tables begin, size and number of their entries (elf(5))."""
_SEGMENT: Final = struct.Struct("=8xQ16xQ16x")
"""Where in the file, and how many bytes."""
_PROGRAM: Final = Path("/proc/self/exe")


def flaw(path: Path) -> str:
    """What is wrong with a library, for a sentence that begins with its path; "" if the loader may have it."""
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
