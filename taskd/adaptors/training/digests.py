"""A digest of tensors' bytes that costs about as much as reading them once, on the device where they are.

The words of 8 bytes of each piece of 64 KiB are summed modulo 2^64, and the sums are hashed in their order. So a change
of one word always shows, and so do pieces in another order; words that are swapped within a piece do not. Small tensors
have a CRC, taken in the host's memory, which saves torch's calls. It is no defence against somebody who means to
deceive. The same bytes have the same digest wherever they are: of a copy in a file, and of what has come to a device.
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
"""Of a digest, unless another length is asked for."""
_PIECE = 1 << 13
_WORD = 8
_HALF = 1 << 63
_SMALL_BYTES = 1 << 17
_WORTH_BYTES = 1 << 24


def digest(tensors: Iterable[torch.Tensor], size_bytes: int = DIGITS // 2, *, before: bytes = b"") -> str:
    """Hexadecimal, of the bytes of these tensors in their order, and of their lengths; and of what comes `before`.

    Raises:
        RuntimeError: one has no memory that can be read (sparse, meta).
    """
    return _of([_sums(tensor) for tensor in tensors], size_bytes, before)


class RunningDigest:
    """The same digest, taken on a thread while tensors are on their way: it reads some as the link carries others.

    Of fewer bytes in all than are worth a thread it is taken at once. `before`: what comes before the tensors.
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
        """The next one; nobody writes to it before the result is there."""
        if self._thread is None:
            self._sums.append(_sums(tensor))
        else:
            self._waiting.put(tensor)

    def result(self) -> str:
        """Of all that were added, which are all. Raises as `digest`."""
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
    sums = words[:whole].view(-1, _PIECE).sum(1).tolist()  # what follows is few numbers: torch's calls cost more
    sums.append(int(words[whole:].sum()) if whole < count else 0)
    rest = flat[count * _WORD :].tolist() if count * _WORD < size else []
    total = (sum(sums) + _HALF) % (2 * _HALF) - _HALF
    return [size, zlib.crc32(array("q", sums)), total, *rest]
