"""A digest of a few bytes of a loader's newest batch. With it a new process is compared with the one that it replaces.

Rules:

1. It is recorded with the place in the data, as a forward pass ends. If a rank dies behind that, its record tells what
   the first batch of the new process must be.
2. Some bytes in the interior of one tensor are read, in 1 to 4 us: of a list's first tensor, of a dictionary's last
   one in alphabetical order (the order of its keys may be another in each process). Nothing is read of an accelerator
   (it would wait for it), nor of a tensor that is not dense. No method of the script's own classes is called.
3. Two batches are compared only if both are the same one of the same pass, in a world of the same size.
"""

import ctypes
import struct
import zlib
from collections import UserDict
from typing import Any, Final

import torch

_HEAD: Final = struct.Struct("<3q")
_TAIL: Final = struct.Struct("<I")
_WINDOW_BYTES: Final = 32
_LARGE_BYTES: Final = 2 * _WINDOW_BYTES
_Window: Final = ctypes.c_char * _WINDOW_BYTES
_DEEP, _PARTS = 3, 4
"""A batch is looked into so far, and at so many of its parts."""


class BatchSamples:
    """Samples of one loader's batches.

    Attributes:
        world_size: of the present world.
        newest: of the batch that was handed out last; empty before the first.
        expected: of a batch that is still to come, as another process had it; empty if none is known.
        differs: whether that batch has come, and was another one.
    """

    def __init__(self) -> None:
        self.world_size = 0
        self.newest = b""
        self.expected = b""
        self.differs = False

    def handed(self, number: int, count: int, sample: bytes) -> None:
        """Record the sample of a batch: the one with this count, from 1 on, in the pass with this number."""
        head = _HEAD.pack(number, count, self.world_size)
        self.newest = head + sample
        if self.expected.startswith(head):
            if self.newest != self.expected:
                self.differs, self.newest = True, self.expected  # who replaces this process is to expect the same
            self.expected = b""


def sample_of(batch: Any) -> bytes:
    """Return a digest of some bytes of a batch; empty if it has no tensor that can be read."""
    found = _bytes_of(batch, _DEEP)
    return _TAIL.pack(zlib.crc32(found)) if found else b""


def _bytes_of(value: Any, deep: int) -> bytes:
    kind = type(value)
    if kind is torch.Tensor:
        return _of_tensor(value)
    if not deep:
        return b""
    if kind is list or kind is tuple:
        for one in value[:_PARTS]:
            if found := _bytes_of(one, deep - 1):
                return found
        return b""
    if isinstance(value, UserDict):  # of Hugging Face's tokenizers
        value = value.data
    if type(value) is dict and value:
        return _bytes_of(value[max(value, key=str)], deep - 1)
    return b""


def _of_tensor(tensor: torch.Tensor) -> bytes:
    try:
        if not tensor.is_cpu or not tensor.is_contiguous():
            return b""
        at, size = tensor.data_ptr(), tensor.nbytes
    except RuntimeError:  # it is not dense
        return b""
    if not at:
        return b""
    if size >= _LARGE_BYTES:
        return _Window.from_address(at + size // 3).raw
    return ctypes.string_at(at, min(size, _WINDOW_BYTES))
