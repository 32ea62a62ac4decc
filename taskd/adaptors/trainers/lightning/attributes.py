"""The attributes of one object at a commit: copied there, and put back when the work behind it is done again.

Rules:

1. Numbers and names are kept as they are, lists, dicts and sets as copies. Of any other object the reference is kept.
2. A copy is put back into the very list or dict that the object still has: others may hold it too.
3. An attribute that was not there is removed.
4. A tensor that is an attribute is copied if it is small: code may update it in place.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Any, Final

import torch

from taskd.adaptors.trainers.lightning.encoding import MOST, encode, is_plain

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_COPIES: Final = frozenset({set, deque, defaultdict, OrderedDict, Counter})
_DEPTH: Final = 2
_LONG: Final = 64
"""Longest list whose items are copied too."""
Taken = dict[str, Any]


def copied(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy that stays as it is, whatever becomes of `value`."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {key: copied(item, depth - 1) for key, item in value.items()} if depth else dict(value)
    if kind is list:
        return [copied(item, depth - 1) for item in value] if depth and len(value) <= _LONG else list(value)
    if kind in _COPIES:
        return value.copy()
    if depth == _DEPTH and isinstance(value, torch.Tensor) and value.numel() <= MOST:
        return value.detach().clone()
    return value


def fill(live: Any, kept: Any) -> Any:
    """Return a copy of `kept`, in the container `live` if that is of the same kind."""
    again = copied(kept)
    if type(live) is not type(again) or again is kept:
        return again
    if isinstance(live, list):
        live[:] = again
    elif isinstance(live, dict | set):
        live.clear()
        live.update(again)
    elif isinstance(live, deque):
        live.clear()
        live.extend(again)
    else:
        return again
    return live


class Attributes:
    """The attributes of `owner` itself, without the names in `left_out`; or only the `names`, if they are there."""

    def __init__(self, owner: Any, *, left_out: Collection[str] = (), names: Collection[str] | None = None) -> None:
        self._own: dict[str, Any] = vars(owner)
        self._left_out = frozenset(left_out)
        self._names = None if names is None else tuple(names)
        self._at_first = {name: _print(value) for name, value in self.take().items()}

    def take(self) -> Taken:
        """Return copies of the present attributes."""
        plain = _PLAIN  # most values are plain: no call for those
        return {name: value if type(value) in plain else copied(value) for name, value in self.seen()}

    def seen(self) -> list[tuple[str, Any]]:
        """Return names and values themselves, not copied."""
        own, left_out = self._own, self._left_out
        if self._names is not None:
            return [(name, own[name]) for name in self._names if name in own]
        return [item for item in own.items() if item[0] not in left_out]

    def put(self, taken: Mapping[str, Any]) -> None:
        """Set the attributes back to these."""
        own = self._own
        names = own if self._names is None else self._names
        for name in [name for name in names if name in own and name not in taken and name not in self._left_out]:
            del own[name]
        for name, kept in taken.items():
            if own.get(name) is not kept or type(kept) not in _PLAIN:
                own[name] = fill(own.get(name), kept)

    def changed(self, taken: Mapping[str, Any]) -> list[list[Any]]:
        """Return the changed attributes for another process: name, first value, present value."""
        found = []
        for name, value in taken.items():
            was = self._at_first.get(name, b"")
            if is_plain(value) and _print(value) != was:
                found.append([name, was, encode(value)])
        return found

    def takes(self, name: str, was: bytes) -> bool:
        """Return whether this object had that first value too: then the other process's value may be set here."""
        return self._at_first.get(name, b"") == was

    def set(self, name: str, value: Any) -> None:
        """Set an attribute to another process's value."""
        self._own[name] = value


def _print(value: Any) -> bytes:
    return repr(encode(value)).encode() if is_plain(value) else b"?"
