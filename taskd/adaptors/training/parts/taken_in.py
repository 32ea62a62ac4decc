"""Numbers and generators outside of the `TrainState` that the self-check has added to it.

Rules:

1. `proof/looks.py` finds them while the training runs, if all ranks have the same value. A job without the self-check
   has none.
2. They are copied at each commit, and restored when a step is done again.
3. A new process gets a peer's values, and finds their places in its own script by their paths.
4. An interrupted step whose optimizers have stepped counts only if all of them have changed since the commit. Whether
   the rest of the step would have changed an unchanged one is unknown.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from taskd.adaptors.training import tree
from taskd.adaptors.training.script.generators import (
    put_generator,
    raw_state_of_generator,
    state_from,
    text_of_state,
)
from taskd.adaptors.training.script.value_places import ValuePlace, place_of, variables_outside

_SCALARS: Final = (bool, int, float)
_LARGEST: Final = 4096
"""Most numbers in one array."""
Taken = tuple[str, bytes]
"""Path and value, encoded."""


class _Copy(NamedTuple):
    """Copy of one value."""

    value: Any
    of_generator: bool

    @property
    def encoded(self) -> bytes:
        return text_of_state(self.value).encode() if self.of_generator else tree.pack(self.value)


class TakenIn:
    """Values taken into one training state."""

    def __init__(self) -> None:
        self.function: Any = None
        self._variables: dict[str, ValuePlace] | None = None
        self._places: dict[str, ValuePlace] = {}
        self._saved: dict[str, _Copy] = {}

    @property
    def any(self) -> bool:
        """True if there are any values."""
        return bool(self._places)

    def has(self, path: str) -> bool:
        """Return whether the value at this path was taken in."""
        return path in self._places

    def enter(self, function: Any) -> None:
        """Resolve paths from the variables of this training function, which is about to be called."""
        if function is not self.function:
            self.function, self._variables = function, None
            self._places, self._saved = {}, {}

    def candidates(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the encoded values of those of these paths that can be taken in."""
        places = {path: place for path in paths if (place := self._find(path)) is not None}
        copies = {path: copy for path, place in places.items() if (copy := _copied(place)) is not None}
        return {
            path: copy.encoded for path, copy in copies.items() if _value_of(copy.encoded, places[path]) is not None
        }

    def take(self, paths: Iterable[str]) -> None:
        """Add the values at these paths as they are now. Call it behind a commit."""
        self._places |= {path: place for path in paths if (place := self._find(path)) is not None}
        self.committed()

    def committed(self) -> None:
        """Copy the present values, since a step is committed."""
        self._saved = {path: copy for path, place in self._places.items() if (copy := _copied(place)) is not None}

    def put_back(self) -> None:
        """Restore the values of the last commit."""
        for path, copy in self._saved.items():
            _put_back(self._places[path], copy)

    @property
    def standing(self) -> list[str]:
        """Paths of the values that have not changed since the commit."""
        return [path for path, copy in self._saved.items() if _is_as(self._places[path], copy)]

    def sent(self) -> list[Taken]:
        """Return all values in the form in which a new process gets them."""
        return [(path, copy.encoded) for path, copy in self._saved.items()]

    def put(self, given: Sequence[Taken]) -> None:
        """Add values that a peer has sent. Raise `ValueError` if this process has no such place."""
        for path, encoded in given:
            place = self._find(path)
            value = None if place is None else _value_of(encoded, place)
            if place is None or value is None:
                raise ValueError(f"the training of a peer changes {path}, and this process has no such thing there")
            _put_back(place, value)
            self._places[path] = place
        if given:
            self.committed()

    def _find(self, path: str) -> ValuePlace | None:
        if self.function is None:
            return None
        if self._variables is None:
            self._variables = variables_outside(self.function)
        return place_of(path, self._variables)


def _copied(place: ValuePlace) -> _Copy | None:
    """Return a copy of the value at a place; None if its kind is not taken in, or if the path to it is gone."""
    try:
        value = place.get()
    except LookupError:
        return None
    if type(value) in _SCALARS:
        return _Copy(value, of_generator=False)
    if tree.is_numpy(value):
        return _Copy(value.copy(), of_generator=False) if value.size <= _LARGEST else None
    state = raw_state_of_generator(value)
    return None if state is None else _Copy(state, of_generator=True)


def _is_as(place: ValuePlace, copy: _Copy) -> bool:
    now = _copied(place)
    return now is not None and now.encoded == copy.encoded


def _put_back(place: ValuePlace, copy: _Copy) -> None:
    with suppress(LookupError):  # the training function makes a value anew that is gone since the commit
        own = place.get()
        if copy.of_generator:
            put_generator(own, copy.value)
        elif not tree.is_numpy(copy.value) or not copy.value.ndim:
            place.put(copy.value)
        elif tree.is_numpy(own) and own.shape == copy.value.shape:
            own[...] = copy.value  # other code may hold the array, too
        else:
            place.put(copy.value.copy())


def _value_of(encoded: bytes, place: ValuePlace) -> _Copy | None:
    """Decode a peer's value for this place; None if the value there is of another kind, or does not accept it."""
    own = _copied(place)
    if own is None:
        return None
    if not own.of_generator:
        value = tree.unpack(encoded)
        return _Copy(value, of_generator=False) if type(value) in _SCALARS or tree.is_numpy(value) else None
    state = state_from(encoded.decode(), place.get())
    return None if state is None else _Copy(state, of_generator=True)
