"""Digest of a few bytes of a loader's newest batch, by which a new process is compared with its predecessor.

Rules:

1. The digest is recorded with the place in the data when a forward pass ends. If the rank dies later in that step, its
   successor's first batch must have the same digest.
2. Sampling reads 32 bytes of one tensor, in 1 to 4 us (`proof/samples.py` reads more, too slowly for each batch): of a
   list's first tensor, or of the value of a dictionary's last key in alphabetical order, since insertion order may
   differ between processes. It skips accelerator tensors, which would force a synchronization, and tensors that are
   not dense. It calls no method of a container of the script's own class.
3. Two batches are compared only if pass, number in the pass and world size agree.
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
_DEPTH, _ITEMS = 3, 4
"""Levels of nesting, and items of each list, that are searched for a tensor."""


class BatchSamples:
    """Samples of one loader's batches.

    Attributes:
        world_size: number of ranks in the present world.
        newest: sample of the batch that was handed out last; empty before the first.
        expected: the predecessor's sample of a batch that is still to come; empty if there is none.
        differs: whether that batch has come with another sample.
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
                self.differs, self.newest = True, self.expected  # a successor is to be compared with the original
            self.expected = b""


def sample_of(batch: Any) -> bytes:
    """Return a digest of some bytes of a batch; empty if it has no tensor that can be read."""
    found = _bytes_of(batch, _DEPTH)
    return _TAIL.pack(zlib.crc32(found)) if found else b""


def _bytes_of(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind is torch.Tensor:
        return _of_tensor(value)
    if not depth:
        return b""
    if kind is list or kind is tuple:
        for one in value[:_ITEMS]:
            if found := _bytes_of(one, depth - 1):
                return found
        return b""
    if isinstance(value, UserDict):  # the class of batches from Hugging Face's tokenizers
        value = value.data
    if type(value) is dict and value:
        return _bytes_of(value[max(value, key=str)], depth - 1)
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
