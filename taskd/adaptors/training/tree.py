"""Encoding of `state_dict`s: a tree of plain values in msgpack, tensors beside it or inside it.

Rules:

1. Nothing is ever unpickled freely. What msgpack does not know goes through `torch.save`, and comes back through
   `torch.load(weights_only=True)`, which builds only tensors, containers and allow-listed types.
2. Types survive: tuples stay tuples, integer keys stay integers, floats keep every bit.
3. A tensor that stands in the tree twice (tied weights) is sent once.
"""

import ctypes
import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from taskd.errors import RestoreError

TakeTensor = Callable[[torch.Tensor], Any]
GiveTensor = Callable[[Any, Any], torch.Tensor]
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1
_copied = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


def fold(value: Any, take: TakeTensor) -> Any:
    """Return `value` as nested lists of plain values; `take` turns each tensor into a plain value."""
    if value is None or type(value) in (bool, float, str, bytes):
        return value
    if type(value) is int and _SMALLEST <= value <= _LARGEST:
        return value
    if isinstance(value, torch.Tensor) and not value.is_sparse and not value.is_quantized:
        return ["t", take(value.detach())]
    if type(value) is list:
        return ["l", [fold(item, take) for item in value]]
    if type(value) is tuple:
        return ["u", [fold(item, take) for item in value]]
    if type(value) in (dict, OrderedDict):
        kind = "d" if type(value) is dict else "o"
        return [kind, [[fold(key, take), fold(item, take)] for key, item in value.items()]]
    return ["p", _save(value)]


def unfold(value: Any, give: GiveTensor, mine: Any = None) -> Any:
    """Return what was folded. `give(plain, own)` makes a tensor; `own` is what `mine`, a like tree, has there."""
    if not isinstance(value, list):
        return value
    kind, body = value
    if kind == "t":
        return give(body, mine if isinstance(mine, torch.Tensor) else None)
    if kind in ("l", "u"):
        own = mine if isinstance(mine, list | tuple) and len(mine) == len(body) else [None] * len(body)
        items = [unfold(item, give, its) for item, its in zip(body, own, strict=True)]
        return items if kind == "l" else tuple(items)
    if kind in ("d", "o"):
        made: dict[Any, Any] = {} if kind == "d" else OrderedDict()
        for folded_key, item in body:
            key = unfold(folded_key, give)
            made[key] = unfold(item, give, mine.get(key) if isinstance(mine, dict) else None)
        return made
    return _load(body)


def pack(value: Any) -> bytes:
    """Return `value` as bytes, tensors included (a copy of each)."""
    return msgspec.msgpack.encode(fold(value, _inline))


def unpack(data: bytes) -> Any:
    """Return what `pack` encoded.

    Raises:
        RestoreError: `data` is not of that kind.
    """
    try:
        return unfold(msgspec.msgpack.decode(data), _outline)
    except (msgspec.DecodeError, TypeError, ValueError, AttributeError) as error:
        raise RestoreError(
            f"a position of {len(data)} bytes cannot be read: {error}; it was written by another taskd"
        ) from error


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's memory as a flat tensor of uint8, sharing it."""
    return tensor.reshape(-1).view(torch.uint8)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a copy of a tensor's bytes, wherever it lies, without numpy.

    Raises:
        RuntimeError: it has no memory that can be read (sparse, meta, a subclass that holds other tensors).
    """
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    address = plain.data_ptr()
    if not address and plain.numel():
        raise RuntimeError(f"a {type(tensor).__name__} has no memory of its own, expected a plain tensor")
    return bytes(_copied(address, plain.nbytes))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name under which `dtype_of` finds it."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of that name; RestoreError if this torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise RestoreError(
            f"a peer sent a tensor of type {name!r}, which this torch does not know; use one torch on all nodes"
        )
    return found


def _inline(tensor: torch.Tensor) -> Any:
    return [dtype_name(tensor.dtype), list(tensor.shape), bytes_of(tensor)]


def _outline(body: Any, own: Any) -> torch.Tensor:
    name, shape, data = body
    made = torch.empty(shape, dtype=dtype_of(name))
    if data:
        as_bytes(made).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return made


def _save(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _load(data: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # torch.load raises several unrelated kinds here, pickle's among them
        raise RestoreError(
            f"a part of the state holds an object that cannot be sent safely: {error}; "
            "keep tensors, numbers, strings and containers of them in its state_dict()"
        ) from error
