"""Requirements for the machine: the oldest kernel, the oldest C library, and shared memory.

Rules:

1. The oldest kernel is the oldest one whose system calls are tested (`tests/bare`). Before kernel 5.3 agents detect the
   end of some processes later.
2. The oldest C library is the oldest one that torch's own wheels run on.
"""

import re
from typing import Final

LEAST_KERNEL: Final = (4, 18)
LEAST_GLIBC: Final = (2, 28)
LEAST_SHARED_BYTES: Final = 16 << 20
"""Free shared memory that a node needs. Black boxes of its ranks take 0.2 MB each; the rest is for the script."""
_LEAST_SHARED_FILES: Final = 256
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


def too_old(text: str, least: tuple[int, int]) -> str:
    """Return why this version is too old, as "found …, expected …", or "". Its first two numbers count."""
    found = _VERSION.search(text)
    expected = f"expected {least[0]}.{least[1]} or newer"
    if found is None:
        return f"found {text or 'none'}, {expected}"
    return "" if (int(found[1]), int(found[2])) >= least else f"found {found[0]}, {expected}"


def unfit_shared_memory(free_bytes: int, free_files: int, *, writable: bool) -> str:
    """Return why the files of a node's ranks do not fit into shared memory, or ""."""
    if not writable:
        return "found it read-only, expected to be allowed to write there; mount it writable"
    if free_bytes < LEAST_SHARED_BYTES:
        found = f"found {free_bytes / 1e6:.1f} MB free, expected {LEAST_SHARED_BYTES / 1e6:.0f} MB"
        return f"{found}; give the container more (docker run --shm-size)"
    if 0 < free_files < _LEAST_SHARED_FILES:
        return f"found room for {free_files} files, expected {_LEAST_SHARED_FILES}; mount it with a larger nr_inodes"
    return ""
