"""Encoding of `state_dict`s: a tree of plain values in msgpack, tensors beside it or inside it.

Rules:

1. Nothing is ever unpickled freely. Values that msgpack cannot encode go through `torch.save`, and come back through
   `torch.load(weights_only=True)`, which builds only tensors, containers and allow-listed types.
2. Types survive: tuples stay tuples, integer keys stay integers, floats keep every bit.
3. A tensor that occurs twice in the tree (tied weights) is sent once.
4. numpy's numbers and arrays of numbers keep their dtype and bytes. numpy is never imported for a process without any.
"""

import ctypes
import importlib
import io
import pickle
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch

from taskd.errors import RestoreError

TakeTensor = Callable[[torch.Tensor], Any]
GiveTensor = Callable[[Any, Any], torch.Tensor]
_FACTORIES: Final = (None, int, float, list, dict, set, str, bool)
"""Allowed `default_factory` values of a `defaultdict` that is sent. Each is encoded as its index here."""
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1
_NUMPY_KINDS: Final = frozenset("biufcmM")
"""numpy's kind letters for numbers, booleans and times. Dtype, shape and bytes are the whole value of these kinds."""
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
    return _fold_rare(value, take)


def _fold_rare(value: Any, take: TakeTensor) -> list[Any]:
    if type(value) is deque:
        return ["q", [value.maxlen, [fold(item, take) for item in value]]]
    if type(value) is defaultdict and value.default_factory in _FACTORIES:
        pairs = [[fold(key, take), fold(item, take)] for key, item in value.items()]
        return ["f", [_FACTORIES.index(value.default_factory), pairs]]
    if is_numpy(value):
        return ["n", [value.dtype.str, list(value.shape) if _is_array(value) else None, value.tobytes()]]
    return ["p", save(value)]


def is_container(value: Any) -> bool:
    """Return whether `fold` encodes a value item by item instead of pickling it."""
    by_type = type(value) in (list, tuple, dict, OrderedDict, deque)
    return by_type or (type(value) is defaultdict and value.default_factory in _FACTORIES)


def unfold(value: Any, give: GiveTensor, mine: Any = None) -> Any:
    """Return the value that was folded.

    `give(plain, own)` makes a tensor from its plain value. `own` is the tensor at the same place of `mine`, a tree of
    the same form, or None.
    """
    if not isinstance(value, list):
        return value
    kind, body = value
    if kind == "t":
        return give(body, mine if isinstance(mine, torch.Tensor) else None)
    if kind in ("l", "u"):
        own = mine if isinstance(mine, list | tuple) and len(mine) == len(body) else [None] * len(body)
        items = [unfold(item, give, its) for item, its in zip(body, own, strict=True)]
        return items if kind == "l" else tuple(items)
    if kind == "q":
        return deque((unfold(item, give) for item in body[1]), body[0])
    if kind in ("d", "o", "f"):
        made: dict[Any, Any] = {} if kind == "d" else OrderedDict()
        if kind == "f":
            made, body = defaultdict(_FACTORIES[body[0]]), body[1]
        for folded_key, item in body:
            key = unfold(folded_key, give)
            made[key] = unfold(item, give, mine.get(key) if isinstance(mine, dict) else None)
        return made
    return _numpy_again(*body) if kind == "n" else load(body)


def is_numpy(value: Any) -> bool:
    """Return whether a value is a number, or an array of numbers, of one of numpy's own types."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "generic"):  # its import is still under way
        return False
    if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
        return False
    dtype = value.dtype
    return dtype.kind in _NUMPY_KINDS and bool(numpy.dtype(dtype.str) == dtype)


def _is_array(value: Any) -> bool:
    return type(value) is getattr(sys.modules["numpy"], "ndarray", None)


def pack(value: Any) -> bytes:
    """Return `value` as bytes, tensors included (a copy of each)."""
    return msgspec.msgpack.encode(fold(value, _inline))


def unpack(data: bytes) -> Any:
    """Return the value that `pack` encoded.

    Raises:
        RestoreError: `data` was not made by `pack`.
    """
    try:
        return unfold(msgspec.msgpack.decode(data), _outline)
    except (msgspec.DecodeError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise RestoreError(
            f"a position of {len(data)} bytes cannot be read: {error}; it was written by another taskd"
        ) from error


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's memory as a flat tensor of uint8, sharing it."""
    return tensor.reshape(-1).view(torch.uint8)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a copy of a tensor's bytes, wherever it lies, without numpy.

    Raises:
        RuntimeError: the tensor has no readable memory (sparse, meta, a subclass that holds other tensors).
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
    """Return the dtype of that name. Raises `RestoreError` if this torch has none."""
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


def _numpy_again(name: str, shape: list[int] | None, data: bytes) -> Any:
    try:
        numpy = importlib.import_module("numpy")
    except ImportError as error:
        raise RestoreError(
            f"a part of the state has numbers of numpy, which cannot be imported here: {error}; install it on all nodes"
        ) from error
    dtype = numpy.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise RestoreError(f"a part of the state names the numpy type {name!r}, expected one of numbers")
    values = numpy.frombuffer(bytearray(data), dtype=dtype).reshape(() if shape is None else shape)
    return values[()] if shape is None else values


def save(value: Any, pickle_module: Any = pickle) -> bytes:
    """Return `value` as `torch.save` writes it."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=pickle_module)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """Return the value that `save` wrote, if it holds only tensors, containers and allow-listed types.

    Raises:
        RestoreError: it holds something else.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # torch.load raises several unrelated kinds here, pickle's among them
        raise RestoreError(
            f"a part of the state holds an object that cannot be sent safely: {error}; "
            "keep tensors, numbers, strings and containers of them in its state_dict()"
        ) from error
