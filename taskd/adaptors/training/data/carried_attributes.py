"""What samplers and datasets of the script's keep from one pass to the next: counters, orders, generators.

A sampler that counts its own passes, or an iterable dataset that shuffles its files once more in each, gives another
order in a new process. What they have changed is recorded as a pass begins, and put back before it is made again.

Rules:

1. Only objects of the script's own classes are looked at, in their `__dict__`: no property is called. Those that have a
   `state_dict` keep themselves.
2. Looked at are numbers, strings, lists and dictionaries of them, and generators of Python and numpy. Of an object that
   has more than 16 KiB of these nothing is recorded.
3. Recorded is only what has changed since the loader was given to the state: a rank's number in its sampler stays its
   own if a peer lends its place in the data.
4. Lists and dictionaries are changed in place: others may hold them too.
"""

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from taskd.adaptors.groups.sites import is_users_class
from taskd.adaptors.training import tree
from taskd.errors import RestoreError

_MOST_BYTES: Final = 16 * 1024
_MOST_ITEMS: Final = 4096
_PLAIN: Final = (bool, int, float, str, type(None))
_DEPTH: Final = 3
_RANDOM: Final = "random"
_NUMPY: Final = "numpy"
_VALUE: Final = "value"
_NOTHING: Final = msgspec.msgpack.encode({})
Snapshot = dict[str, bytes]
"""Attributes of one object, encoded."""


class CarriedAttributes:
    """That of one loader.

    Args:
        things: returns its samplers, and its dataset if that is iterable, in a fixed order.
    """

    def __init__(self, things: Callable[[], Iterable[Any]]) -> None:
        self._things = things
        self._first = self._snapshots()
        self._begun = self._first
        self._is_new = False

    def begin(self) -> None:
        """A pass begins that was never begun before."""
        self._begun, self._is_new = self._snapshots(), True

    def of_pass(self, known: list[bytes]) -> list[bytes]:
        """Return what is to be recorded of the present pass, `known` of it before. Its samplers have begun."""
        if self._is_new:
            self._is_new = False
            return self._changed(self._begun)
        return known

    def of_end(self) -> list[bytes]:
        """Return what is to be recorded of a pass that is over: the values of now."""
        return self._changed(self._snapshots())

    def put(self, recorded: Iterable[bytes]) -> None:
        """Put back what was recorded.

        Raises:
            RestoreError: it does not fit these objects.
        """
        self._is_new = False
        for thing, data in zip(self._things(), recorded, strict=False):
            _put_all(thing, data)

    @staticmethod
    def holds(recorded: Iterable[bytes]) -> bool:
        """Return whether something was recorded."""
        return any(data != _NOTHING for data in recorded)

    def names(self) -> set[tuple[int, str]]:
        """Return what is looked at: the id of each object, and the attribute's name."""
        return {(id(thing), name) for thing in self._things() for name in _snapshot(thing)}

    def _snapshots(self) -> list[Snapshot]:
        return [_snapshot(thing) for thing in self._things()]

    def _changed(self, values: list[Snapshot]) -> list[bytes]:
        """Encode these values of the attributes that have changed, or whose values have."""
        found = []
        for first, now, value in zip(self._first, self._snapshots(), values, strict=False):
            names = (name for name in value if not first.get(name) == now.get(name) == value[name])
            found.append(msgspec.msgpack.encode({name: value[name] for name in names}))
        return found


def _snapshot(thing: Any) -> Snapshot:
    if not is_users_class(type(thing)) or not hasattr(thing, "__dict__"):
        return {}
    found = {name: tree.pack(kept) for name, value in vars(thing).items() if (kept := _kept(value)) is not None}
    return found if sum(map(len, found.values())) <= _MOST_BYTES else {}


def _kept(value: Any) -> list[Any] | None:
    if type(value) is random.Random:
        return [_RANDOM, value.getstate()]
    if (bits := _bits_of(value)) is not None:
        return [_NUMPY, bits.state]
    return [_VALUE, value] if _is_plain(value, _DEPTH) else None


def _bits_of(value: Any) -> Any:
    """The bit generator of a generator of numpy's."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None or type(value) not in (numpy.Generator, numpy.RandomState):
        return None
    return value.bit_generator if type(value) is numpy.Generator else value._bit_generator


def _is_plain(value: Any, depth: int) -> bool:
    if type(value) in _PLAIN:
        return True
    if not depth or type(value) not in (list, tuple, dict) or len(value) > _MOST_ITEMS:
        return False
    items = [*value, *value.values()] if type(value) is dict else value
    return all(_is_plain(item, depth - 1) for item in items)


def _put_all(thing: Any, data: bytes) -> None:
    try:
        for name, value in msgspec.msgpack.decode(data, type=Snapshot).items():
            _put(thing, name, *tree.unpack(value))
    except (msgspec.DecodeError, RestoreError, TypeError, ValueError, AttributeError, KeyError) as error:
        kind = type(thing).__name__
        raise RestoreError(f"what a {kind} had kept of its passes cannot be put back: {error}") from error


def _put(thing: Any, name: str, kind: str, value: Any) -> None:
    now = vars(thing).get(name)
    if kind == _RANDOM and type(now) is random.Random:
        now.setstate(value)
    elif kind == _NUMPY and (bits := _bits_of(now)) is not None:
        bits.state = value
    elif type(value) is list and type(now) is list:
        now[:] = value
    elif type(value) is dict and type(now) is dict:
        now.clear()
        now.update(value)
    elif kind == _VALUE:
        vars(thing)[name] = value
