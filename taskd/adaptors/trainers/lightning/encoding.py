"""The encoding of one rank's own values (sums of logged values, metrics) as a few bytes, after each forward pass.

Rules:

1. Most values are tensors of one element: type and number stand for them. `float` has every bit of each such type.
2. A larger tensor is encoded as bytes, up to `MOST` elements. A list or dict is encoded with its items.
3. A value that cannot be encoded in this way raises TypeError: the caller leaves it out, and reports it.
"""

from collections import deque
from typing import Any, Final

import torch

from taskd.adaptors.training import tree

MOST: Final = 4096
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_TYPES: Final = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
_NUMBER: Final = {dtype: number for number, dtype in enumerate(_TYPES)}
_CONTAINERS: Final[dict[str, Any]] = {"l": list, "u": tuple, "s": set, "q": deque}
_NAMES: Final[dict[Any, str]] = {kind: name for name, kind in _CONTAINERS.items()}


def encode(value: Any) -> Any:
    """Return a value as nested lists of plain values. Raise TypeError if it is of another kind, or too large."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        number = _NUMBER.get(value.dtype)
        if value.ndim == 0 and number is not None:
            return ["n", number, value.item()]
        if value.numel() > MOST:
            raise TypeError(f"a tensor of {value.numel()} elements is too large, at most {MOST} have room")
        if number is None or value.dtype is torch.bfloat16:
            return ["t", tree.pack(value)]
        if value.layout is not torch.strided:
            raise TypeError(f"a tensor of layout {value.layout} cannot be put down")
        return ["a", tree.bytes_of(value), number, value.shape]
    if kind in _NAMES:
        return [_NAMES[kind], [encode(item) for item in value], getattr(value, "maxlen", None)]
    if kind is dict:
        return ["d", [[encode(key), encode(item)] for key, item in value.items()]]
    raise TypeError(f"a {kind.__name__} cannot be put down")


def decode(value: Any, device: torch.device) -> Any:
    """Return the encoded value, with its tensors on that device."""
    if not isinstance(value, list):
        return value
    kind, body, *more = value
    if kind == "n":
        return torch.tensor(more[0], dtype=_TYPES[body], device=device)
    if kind == "t":
        return tree.unpack(body).to(device)
    if kind == "a":
        number, shape = more
        made = torch.frombuffer(bytearray(body), dtype=_TYPES[number]) if body else torch.empty(0, dtype=_TYPES[number])
        return made.reshape(shape).to(device)
    if kind == "d":
        return {decode(key, device): decode(item, device) for key, item in body}
    items = [decode(item, device) for item in body]
    return deque(items, more[0]) if kind == "q" else _CONTAINERS[kind](items)


def is_plain(value: Any, depth: int = 4) -> bool:
    """Return whether a value has only parts that can be encoded."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if isinstance(value, torch.Tensor):
        return value.numel() <= MOST
    if not depth or (kind is not dict and kind not in _NAMES):
        return False
    items = (*value, *value.values()) if kind is dict else value
    return all(is_plain(item, depth - 1) for item in items)
