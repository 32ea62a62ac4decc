"""The attributes of one object, as they were: copied at a commit, put back when what follows is done again.

Rules:

1. Numbers and names are kept as they are, lists, dicts and sets as copies; of anything else the reference.
2. A copy is put back into the very list or dict that the object still has: others may hold it too.
3. What was not there is removed.
4. A tensor that is an attribute is copied if it is small: what updates it may do so in place.
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
"""In lists longer than this the items are not looked at."""
Taken = dict[str, Any]


def copied(value: Any, depth: int = _DEPTH) -> Any:
    """What will be there later, whatever becomes of `value`."""
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
    """`kept` again, as a copy of its own: in the container that is there now, if it is of the same kind."""
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
    """Those of `owner` itself, without the names in `left_out`; or only the `names`, where they are there."""

    def __init__(self, owner: Any, *, left_out: Collection[str] = (), names: Collection[str] | None = None) -> None:
        self._own: dict[str, Any] = vars(owner)
        self._left_out = frozenset(left_out)
        self._names = None if names is None else tuple(names)
        self._at_first = {name: _print(value) for name, value in self.take().items()}

    def take(self) -> Taken:
        """As they are now."""
        plain = _PLAIN  # most are: no call for those
        return {name: value if type(value) in plain else copied(value) for name, value in self.seen()}

    def seen(self) -> list[tuple[str, Any]]:
        """Names and values themselves, not copied."""
        own, left_out = self._own, self._left_out
        if self._names is not None:
            return [(name, own[name]) for name in self._names if name in own]
        return [item for item in own.items() if item[0] not in left_out]

    def put(self, taken: Mapping[str, Any]) -> None:
        """Make them those again."""
        own = self._own
        names = own if self._names is None else self._names
        for name in [name for name in names if name in own and name not in taken and name not in self._left_out]:
            del own[name]
        for name, kept in taken.items():
            if own.get(name) is not kept or type(kept) not in _PLAIN:
                own[name] = fill(own.get(name), kept)

    def changed(self, taken: Mapping[str, Any]) -> list[list[Any]]:
        """What has another value than at first, for another process: name, what it was at first, what it is."""
        found = []
        for name, value in taken.items():
            was = self._at_first.get(name, b"")
            if is_plain(value) and _print(value) != was:
                found.append([name, was, encode(value)])
        return found

    def takes(self, name: str, was: bytes) -> bool:
        """Whether this object had that value at first, too: then it is given what the other has."""
        return self._at_first.get(name, b"") == was

    def set(self, name: str, value: Any) -> None:
        """Another process's."""
        self._own[name] = value


def _print(value: Any) -> bytes:
    return repr(encode(value)).encode() if is_plain(value) else b"?"
