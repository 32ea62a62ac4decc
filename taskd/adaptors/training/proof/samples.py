"""A few numbers of what the script holds, by which two moments are compared. Nothing of the script is called."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import torch

from taskd.adaptors.training.sharding.shards import local
from taskd.adaptors.training.tree import bytes_of

_SOME: Final = 32
_LONGEST: Final = 2_000
"""Items of a list that are all looked at; of a longer one a few are."""
_LEAVES: Final = (bool, int, float, str, bytes, type(None))
_ROWS: Final = (list, tuple, deque)
_NESTED: Final = 3
"""So deep are lists looked into."""


def sample(tensor: torch.Tensor) -> bytes:
    """A few numbers of a tensor with its shape, as bytes; b"" if it cannot be read or has none."""
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
    """The address of a tensor's memory; 0 if it has none."""
    try:
        return local(tensor.detach()).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def row_of(value: Any) -> bytes | None:
    """What stands in a list of numbers, texts, and lists of them; of a long one a few items. None for anything else."""
    if type(value) not in _ROWS or not _is_row(value, _NESTED):
        return None
    return repr(_some(value)).encode()


def ends_of(array: Any) -> bytes:
    """A few numbers of a numpy array, as bytes; b"" if they do not lie one after the other."""
    if not array.flags.c_contiguous:
        return b""
    flat, half = array.reshape(-1), array.size // 2
    return b"".join(part.tobytes() for part in (flat[:_SOME], flat[half : half + _SOME], flat[-_SOME:]))


def _is_row(value: Any, depth: int) -> bool:
    kind = type(value)  # a subclass of the script's has methods of its own
    if kind in _LEAVES:
        return True
    return depth > 0 and kind in _ROWS and all(_is_row(one, depth - 1) for one in _some(value))


def _some(value: Any) -> list[Any]:
    length = len(value)
    if length <= _LONGEST:
        return list(value)
    if isinstance(value, deque):  # its middle is far from both of its ends
        return [value[0], value[-1]]
    half = length // 2
    return [*value[:_SOME], *value[half : half + _SOME], *value[-_SOME:]]


def is_of_numbers(values: Iterable[Any]) -> bool:
    """Whether a container holds a long row of numbers or texts."""
    first = [value for value, _ in zip(values, range(64), strict=False)]
    return len(first) == 64 and all(isinstance(one, int | float | str | bytes) for one in first)
