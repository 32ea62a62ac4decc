"""Population of a forked process's own pages before it needs them.

After a fork, each page costs a fault when it is touched: written memory is copied, and no file page is mapped yet. A
standby that became a rank spent half of its time on 4,000 such faults.

Rules:

1. Only pages that the template had in memory when it forked are touched. Its empty arenas and the unused parts of
   libraries are not. Unknown or impossible cases (such as a kernel before 5.14) are left as they are.
2. Mapped file pages cost nothing, because all processes share them. Copies cost a standby the template's whole memory,
   220 MB with plain torch, and save a recovery some 15 ms: `TASKD_STANDBY_SHARED` does without.
3. With copies comes free memory on the heap: a small rank allocates from it without asking the system.
4. The work is done in small pieces. Between them, it is checked whether the process is needed.
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
"""Size limit of a mapping. A larger one is a reserved address range, and a scan of it would take long."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_ENTRY_BYTES: Final = 8
_PRESENT: Final = re.compile(rb"[\x80-\xff]+")
"""Last bytes of present pages' entries in /proc/PID/pagemap: bit 63 of an entry means that the page is in memory."""
Range = tuple[int, int]


def mapped_files() -> list[Range]:
    """Return the address ranges of file pages that this process has read or run. Call it before a fork."""
    return list(_present(lambda rights, path: rights in ("r--p", "r-xp") and path.startswith("/")))


def map_files(files: Iterable[Range], needed: Callable[[], bool]) -> None:
    """Map these ranges, until all are mapped or `needed` returns True."""
    _populate(files, _POPULATE_READ, needed)


def copy_memory(needed: Callable[[], bool]) -> None:
    """Copy all writable memory and extend the heap, until all is done or `needed` returns True."""
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
    """Leave free memory on the heap that has its pages: in the present holes, and at its end.

    Freeing a mapped block makes glibc serve such sizes from the heap from then on, and keep twice as much of it
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
    """Yield the ranges of pages in memory, of all mappings whose rights and path are wanted."""
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
