"""Gives a forked process its own pages before it needs them.

After a fork each page costs a fault when it is touched: memory is copied when it is written, and of files nothing is
mapped yet. A standby that became a rank spent half of its time on 4,000 of them.

Rules:

1. Touched is what the template had in memory when it forked, and no more: neither its empty arenas nor the parts of
   libraries that nobody has used. What cannot be known or done (a kernel before 5.14, say) is left as it is.
2. What is mapped of files costs nothing, for all processes share it. Copies cost a standby all that the template has,
   220 MB with plain torch, and save a recovery some 15 ms: `TASKD_STANDBY_SHARED` does without.
3. With copies goes free memory on the heap: a small rank gets what it allocates without asking the system.
4. It is done by small pieces, with a look in between at whether the process is needed.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 1 << 21
HEAP_BYTES: Final = 1 << 23
_BLOCK_BYTES: Final = 1 << 17
_POPULATE_READ, _POPULATE_WRITE = 22, 23
"""MADV_POPULATE_READ and MADV_POPULATE_WRITE (madvise(2))."""
_LARGEST_BYTES: Final = 1 << 34
"""A larger mapping is an address range that somebody has reserved; to look through it would take long."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_ENTRY_BYTES: Final = 8
_PRESENT: Final = re.compile(rb"[\x80-\xff]+")
"""Of the last bytes of the entries of /proc/PID/pagemap: bit 63 of an entry says that the page is in memory."""
Range = tuple[int, int]


def mapped_files() -> list[Range]:
    """Address ranges of the pages of files that this process has read or run. To be asked before a fork."""
    return list(_present(lambda rights, path: rights in ("r--p", "r-xp") and path.startswith("/")))


def map_files(files: Iterable[Range], needed: Callable[[], bool]) -> None:
    """Map these ranges, until it is done or `needed`."""
    _populate(files, _POPULATE_READ, needed)


def copy_memory(needed: Callable[[], bool]) -> None:
    """Copy all memory that can be written, and extend the heap, until it is done or `needed`."""
    if not needed():
        _extend_heap(ctypes.CDLL(None))
        _populate(_present(lambda rights, _path: rights == "rw-p"), _POPULATE_WRITE, needed)


def _populate(ranges: Iterable[Range], advice: int, needed: Callable[[], bool]) -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    done = PIECE_BYTES
    for start, end in list(ranges):
        for at in range(start, end, PIECE_BYTES):
            if done >= PIECE_BYTES and needed():
                return
            size = min(PIECE_BYTES, end - at)
            madvise(at, size, advice)
            done = size if done >= PIECE_BYTES else done + size


def _extend_heap(libc: ctypes.CDLL) -> None:
    """Leave free memory on the heap that has its pages: in the holes that there are, and at its end.

    To free a block that was mapped has glibc serve such sizes from the heap from then on, and keep twice as much of it
    (mallopt(3), M_MMAP_THRESHOLD).
    """
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(HEAP_BYTES))
    blocks = [libc.malloc(_BLOCK_BYTES) for _ in range(HEAP_BYTES // _BLOCK_BYTES)]
    for block in filter(None, blocks):
        ctypes.memset(block, 0, _BLOCK_BYTES)
    for block in blocks:
        libc.free(block)


def _present(wanted: Callable[[str, str], bool]) -> Iterator[Range]:
    """The pages in memory of all mappings whose rights and path are wanted, as ranges."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            for line in Path("/proc/self/maps").read_text().splitlines():
                addresses, rights, _, _, _, *path = line.split(None, 5)
                start, end = (int(word, 16) for word in addresses.split("-"))
                if end - start > _LARGEST_BYTES or not wanted(rights, path[0] if path else ""):
                    continue
                pages = (end - start) // _PAGE_BYTES
                entries = os.pread(pagemap.fileno(), pages * _ENTRY_BYTES, start // _PAGE_BYTES * _ENTRY_BYTES)
                for found in _PRESENT.finditer(entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]):
                    yield start + found.start() * _PAGE_BYTES, start + found.end() * _PAGE_BYTES
    except OSError:
        return
