"""Digests of tensor bytes, computed on the tensors' device at about the cost of one read.

The 8-byte words of each 64 KiB piece are summed modulo 2^64, and the sums are hashed in order. A change of one word
always changes the digest, and so does another order of the pieces. A swap of words within a piece does not. Small
tensors get a CRC, computed in host memory, which saves torch calls. The digest does not protect against deliberate
manipulation. Equal bytes have equal digests wherever they are, such as in a copy's file and on a device that received
them.
"""

import hashlib
import zlib
from array import array
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Final

import torch

from taskd.adaptors.training.tree import bytes_of
from taskd.runtime.system.hidden import HiddenThread

DIGITS: Final = 16
"""Length of a digest in hexadecimal digits, unless the caller requests another one."""
_PIECE = 1 << 13
_WORD = 8
_HALF = 1 << 63
_SMALL_BYTES = 1 << 17
_WORTH_BYTES = 1 << 24


def digest(tensors: Iterable[torch.Tensor], size_bytes: int = DIGITS // 2, *, before: bytes = b"") -> str:
    """Return the hexadecimal digest of the bytes `before` and of these tensors' bytes and lengths, in order.

    Raises:
        RuntimeError: a tensor has no readable memory (sparse, meta).
    """
    return _of([_sums(tensor) for tensor in tensors], size_bytes, before)


class RunningDigest:
    """The same digest, computed on a thread while tensors are transferred: it reads some while others are in transit.

    If there are too few bytes to be worth a thread, each tensor is read at once. `before`: bytes before the tensors.
    """

    def __init__(self, size_bytes: int, before: bytes = b"") -> None:
        self._before = before
        self._sums: list[list[int]] = []
        self._error: RuntimeError | None = None
        self._waiting: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._thread = HiddenThread(self._run, "taskd-digest") if size_bytes >= _WORTH_BYTES else None

    def __enter__(self) -> "RunningDigest":
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)

    def add(self, tensor: torch.Tensor) -> None:
        """Add the next tensor. It must not be written to before `result` returns."""
        if self._thread is None:
            self._sums.append(_sums(tensor))
        else:
            self._waiting.put(tensor)

    def result(self) -> str:
        """Return the digest of all tensors, after the last one was added. Raises as `digest`."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return _of(self._sums, DIGITS // 2, self._before)

    def _run(self) -> None:
        try:
            while (tensor := self._waiting.get()) is not None:
                self._sums.append(_sums(tensor))
        except RuntimeError as error:
            self._error = error


def _of(sums: list[list[int]], size_bytes: int, before: bytes) -> str:
    return hashlib.blake2b(before + repr(sums).encode(), digest_size=size_bytes).hexdigest()


def _sums(tensor: torch.Tensor) -> list[int]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    size = flat.numel()
    if size <= _SMALL_BYTES:
        return [size, zlib.crc32(bytes_of(flat))]
    if flat.storage_offset() % _WORD:
        flat = flat.clone()
    count = size // _WORD
    whole = count // _PIECE * _PIECE
    words = flat[: count * _WORD].view(torch.int64)
    sums = words[:whole].view(-1, _PIECE).sum(1).tolist()  # few numbers remain: Python is faster than torch calls
    sums.append(int(words[whole:].sum()) if whole < count else 0)
    rest = flat[count * _WORD :].tolist() if count * _WORD < size else []
    total = (sum(sums) + _HALF) % (2 * _HALF) - _HALF
    return [size, zlib.crc32(array("q", sums)), total, *rest]
