"""Samples of tensors, arrays and lists, to compare two moments. No code of the script is called."""

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import torch

from taskd.adaptors.training.sharding.shards import local
from taskd.adaptors.training.tree import bytes_of

_SOME: Final = 32
_LONGEST: Final = 2_000
"""Longest list that is read whole; of a longer one a few items are read."""
_LEAVES: Final = (bool, int, float, str, bytes, type(None))
_ROWS: Final = (list, tuple, deque)
_NESTED: Final = 3
"""Levels of nested lists that are read."""
_MOST_LEAVES: Final = 10_000
_LONG_BITS: Final = 4_096
"""Size from which on an integer is written in hex: Python refuses to write a longer one in decimals."""


def sample(tensor: torch.Tensor) -> bytes:
    """Return a few numbers of a tensor with its shape, as bytes; b"" if it cannot be read or has none."""
    try:
        values = local(tensor.detach())
        if values.is_sparse or values.is_meta or values.is_quantized or not values.numel():
            return b""
        if values.is_contiguous():
            flat = values.view(-1)
            some = torch.cat([flat[:_SOME], flat[len(flat) // 2 :][:_SOME], flat[-_SOME:]])
        else:
            while values.dim() > 1:
                values = values[0]
            some = values[: 3 * _SOME]
        return f"{tuple(tensor.shape)}{tensor.dtype}".encode() + bytes_of(some)
    except (RuntimeError, NotImplementedError, TypeError):
        return b""


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none."""
    try:
        return local(tensor.detach()).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def row_of(value: Any) -> bytes | None:
    """Return a digest of a list of numbers, texts and such lists, sampled if it is long; None for anything else."""
    if type(value) not in _ROWS:
        return None
    leaves: list[str] = []
    if not _add_leaves(value, leaves, _NESTED):
        return None
    return hashlib.blake2b("\0".join(leaves).encode(errors="surrogatepass"), digest_size=16).digest()


def ends_of(array: Any) -> bytes:
    """Return a few numbers of a numpy array, as bytes; b"" if it is not contiguous."""
    if not array.flags.c_contiguous:
        return b""
    flat, half = array.reshape(-1), array.size // 2
    return b"".join(part.tobytes() for part in (flat[:_SOME], flat[half : half + _SOME], flat[-_SOME:]))


def _add_leaves(value: Any, leaves: list[str], depth: int) -> bool:
    """Append its numbers and texts to `leaves`. Return False if it holds anything else."""
    kind = type(value)  # a subclass of the script's has methods of its own
    if kind in _LEAVES:
        if kind is int and value.bit_length() > _LONG_BITS:
            leaves.append(hex(value))
        else:
            leaves.append(repr(value[:_LONGEST] if kind in (str, bytes) else value))
        return True
    if not depth or kind not in _ROWS or len(leaves) > _MOST_LEAVES:
        return depth > 0 and kind in _ROWS
    leaves.append(f"[{len(value)}")
    return all(_add_leaves(one, leaves, depth - 1) for one in _some(value))


def _some(value: Any) -> list[Any]:
    length = len(value)
    if length <= _LONGEST:
        return list(value)
    if type(value) is deque:  # its middle is far from both of its ends
        return [value[0], value[-1]]
    half = length // 2
    return [*value[:_SOME], *value[half : half + _SOME], *value[-_SOME:]]


def is_of_numbers(values: Iterable[Any]) -> bool:
    """Return whether a container holds a long row of numbers or texts."""
    first = [value for value, _ in zip(values, range(64), strict=False)]
    return len(first) == 64 and all(isinstance(one, int | float | str | bytes) for one in first)
