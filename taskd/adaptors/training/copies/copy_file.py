"""One copy of one rank's state, in memory that the agent keeps: `kill -9` does not harm it, and nobody can truncate it.

Rules:

1. The head is erased before the first byte changes, and written after the last one. So a file with a head is whole.
2. The memory is reserved when the copy is made. A full file system then raises an error, instead of a SIGBUS in the
   middle of a step. The agent's memory has no such limit, so the free memory is checked before it grows
   (`CopyFolder.room`). A file in its place may be truncated; that costs the copy, but not the process.
3. The head holds the digest of the whole stream. It is compared when a copy is loaded, and a damaged copy is erased.
"""

import mmap
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import torch

from taskd.runtime.folders.nameless import open_kept
from taskd.runtime.worker.pulse import guard
from taskd.wire.bounds import Counter, OfJob

HEAD_BYTES: Final = 4096
_MAGIC: Final = b"taskdcp1"
_PAGE: Final = 1 << 20
_MOST_BYTES: Final = 1 << 50


class CopyHead(msgspec.Struct, frozen=True):
    """Description of a whole copy: rank and step of the state, its size in bytes, and the digest of all of them.

    Attributes:
        place: the copy holds only that rank's data position and random numbers; another rank of the node copies the
            state.
        section: number of the resilient function that it belongs to.
        own: the state differs between replicas.
    """

    of: OfJob
    step: Counter
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=_MOST_BYTES)]
    digest: Annotated[str, msgspec.Meta(max_length=64, pattern="^[0-9a-f]*$")] = ""
    place: bool = False
    section: Counter = 0
    own: bool = False


class CopyFile:
    """The memory of one copy, mapped into this process while this object or a tensor of it exists.

    Raises:
        OSError: the memory cannot be made or mapped; `ENOSPC` if there is no room.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = self._mapped(HEAD_BYTES)
        self.position = 0
        self.device = torch.device("cpu")

    # ---- the whole file

    def head(self) -> CopyHead | None:
        """Return the head of a whole copy; None if there is no copy or it is not whole."""
        start = self._map[:16]
        length, check = int.from_bytes(start[8:12], "little"), int.from_bytes(start[12:16], "little")
        data = self._map[16 : 16 + length] if length <= HEAD_BYTES - 16 else b""
        if start[:8] != _MAGIC or zlib.crc32(data) != check:
            return None
        try:
            head = msgspec.msgpack.decode(data, type=CopyHead)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        return head if head.size_bytes <= len(self._map) - HEAD_BYTES else None

    @property
    def size_bytes(self) -> int:
        """Size of the memory."""
        return len(self._map)

    def erase(self) -> None:
        """Erase the head: the memory is no copy any more."""
        self._map[:16] = bytes(16)

    def growth(self, size_bytes: int) -> int:
        """Return how many bytes the memory must grow by to hold `size_bytes` behind the head."""
        return max(0, _in_pages(HEAD_BYTES + size_bytes) - len(self._map))

    def reserve(self, size_bytes: int) -> None:
        """Erase the head and make room for `size_bytes` behind it. Raises `OSError`."""
        self.erase()
        if size_bytes > len(self._map) - HEAD_BYTES:
            self._map = self._mapped(HEAD_BYTES + size_bytes)
        self.position = 0

    def remove(self) -> None:
        """Give the memory back to the system. It is no copy any more."""
        self._map.madvise(mmap.MADV_REMOVE)

    def seal(self, head: CopyHead) -> None:
        """Write the head, because all bytes are there."""
        data = msgspec.msgpack.encode(head)
        self._map[16 : 16 + len(data)] = data
        check = zlib.crc32(data)
        self._map[:16] = _MAGIC + len(data).to_bytes(4, "little") + check.to_bytes(4, "little")

    def bytes(self, size_bytes: int) -> memoryview:
        """Return the memory of the first `size_bytes` behind the head."""
        return memoryview(self._map)[HEAD_BYTES : HEAD_BYTES + size_bytes]

    def tensor(self, start: int, size_bytes: int) -> torch.Tensor:
        """Return the memory of `size_bytes` from `start` on behind the head, as a flat tensor of uint8."""
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        return whole[HEAD_BYTES + start : HEAD_BYTES + start + size_bytes]

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        size_bytes = _in_pages(size_bytes)
        file = open_kept(self.path)
        try:
            size_bytes = max(size_bytes, os.fstat(file).st_size)
            os.posix_fallocate(file, 0, size_bytes)
            memory = mmap.mmap(file, size_bytes)
        finally:
            os.close(file)
        guard(memory)
        return memory

    # ---- as the source of a stream

    @property
    def digest(self) -> str:
        """Digest of the whole stream; "" if there is no whole copy."""
        head = self.head()
        return head.digest if head is not None else ""

    def receive(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Fill a tensor with the next bytes, at once. Raises `ValueError` if too few are left."""
        head = self.head()
        if head is None or self.position + tensor.nbytes > head.size_bytes:
            raise ValueError(f"the copy {self.path.name} ends before the state does")
        tensor.view(-1).view(torch.uint8).copy_(self.tensor(self.position, tensor.nbytes))
        self.position += tensor.nbytes
        return _nothing


def _in_pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE) * _PAGE


def _nothing() -> None:
    """Do nothing: the bytes are there already."""
