"""After a fork, the memory is there before it is needed, and a process that is needed sooner does not wait."""

import ctypes
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from taskd.adaptors.torchrun.prefault import PIECE_BYTES, copy_memory, map_files, mapped_files

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
MEMORY_BYTES = 16 * PIECE_BYTES
MAP_NORESERVE = 0x4000
ROOM_BYTES = 4 << 20
BLOCK_BYTES = 1 << 18
PAGES = MEMORY_BYTES // PAGE_BYTES


def faults_of_a_child(before: Callable[[], None]) -> int:
    """Return the page faults of a forked child that writes to each page of memory that its parent has filled."""
    memory = bytearray(os.urandom(PAGE_BYTES) * PAGES)

    def count() -> int:
        before()
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for at in range(0, MEMORY_BYTES, PAGE_BYTES):
            memory[at] ^= 1
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

    return in_a_child(count)


def in_a_child(count: Callable[[], int]) -> int:
    """Return the number that a forked child computes."""
    result, answer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(answer, str(count()).encode())
        os._exit(0)
    os.close(answer)
    with open(result) as file:
        number = int(file.read())
    assert os.waitpid(child, 0)[1] == 0
    return number


def test_memory_is_copied_ahead() -> None:
    without, ahead = faults_of_a_child(lambda: None), faults_of_a_child(lambda: copy_memory(lambda: False))
    assert without >= PAGES // 512, "nothing to be saved: this test would show nothing"
    assert ahead < without / 4


def test_the_heap_has_room_ahead() -> None:
    def faults_of_an_allocation(before: Callable[[], None]) -> int:
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        before()
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(ROOM_BYTES // BLOCK_BYTES):
            ctypes.memset(ctypes.c_void_p(libc.malloc(BLOCK_BYTES)), 1, BLOCK_BYTES)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

    without = in_a_child(lambda: faults_of_an_allocation(lambda: None))
    ahead = in_a_child(lambda: faults_of_an_allocation(lambda: copy_memory(lambda: False)))
    assert without >= ROOM_BYTES // PAGE_BYTES // 2, "nothing to be saved: this test would show nothing"
    assert ahead < without / 4


def test_files_are_mapped_ahead(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MEMORY_BYTES))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:

        def read() -> int:
            begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            assert sum(mapped[at] for at in range(0, MEMORY_BYTES, PAGE_BYTES)) == 0
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

        def read_ahead() -> int:
            map_files(files, lambda: False)
            return read()

        read()
        files = mapped_files()
        without, ahead = in_a_child(read), in_a_child(read_ahead)
    assert without >= PAGES // 64, "nothing to be saved: this test would show nothing"
    assert ahead < without / 4


def test_memory_stays_shared_where_it_is_to() -> None:
    without = faults_of_a_child(lambda: None)
    shared = faults_of_a_child(lambda: map_files(mapped_files(), lambda: False))
    assert shared > without / 2


def test_one_that_is_needed_stops_after_a_piece() -> None:
    asked = 0

    def needed() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    copy_memory(needed)
    assert asked == 3


def test_without_knowledge_of_its_memory_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert not mapped_files()
    copy_memory(lambda: False)


def test_a_range_that_is_only_reserved_is_not_looked_through() -> None:
    reserved = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    reserved[0] = 1
    asked = 0

    def needed() -> bool:
        nonlocal asked
        asked += 1
        return False

    copy_memory(needed)
    assert asked * PIECE_BYTES < 1 << 34
    reserved.close()
