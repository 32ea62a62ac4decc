"""Iterators of data loaders outside of the state: those that a new process makes again draw no second number.

Rules:

1. A loader with persistent workers makes one iterator in each process, and draws a seed for it from torch's generator.
   A new process of a rank makes the iterator again, and its generator would be one number ahead of its predecessor's.
2. Each process counts these iterators by the script's line that begins the loop. The counts are recorded with the data
   position of each commit.
3. A restored position counts iterators that its rank had made by then. The process makes that many without a draw. It
   drops those that it has made since: the repeated step makes them again, with a draw.
4. If a loader ends while the training function runs, its line makes a new loader each time, and draws in every process.
   Such a line is not counted.
5. Any other loader makes an iterator for each pass. A position counts the passes, by line, that its commit was in. The
   training function begins these again, and their first iterators draw no seed.
"""

import weakref
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import dataloader

from taskd.adaptors.training.data.strays import is_in_the_middle, iterated_at, keeps_itself
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

OF_ITERATORS: Final = "\0iterators"
"""Name of the counts among the data positions."""

_Counts = dict[str, int]
"""Numbers of iterators, by the line that begins the loop."""


class PersistentIterators:
    """Iterators that one process makes while its training function runs."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {}
        self._restored: _Counts = {}
        self._passes: dict[str, list[weakref.ref[Any]]] = {}
        self._begun_again: _Counts = {}
        self._open: _Counts = {}
        """Passes that the newest packed position was in."""
        self._packed: bytes | None = None
        self._own: Any = None
        self._runs = False
        self._anew: set[str] = set()

    def watch(self, *, passes: bool) -> None:
        """Count iterators from now on; those of rule 5 only with `passes`: a trainer's adapter restores its own."""
        if self._own is not None:
            return
        own = self._own = vars(dataloader._BaseDataLoaderIter)["__init__"]

        def noted(iterator: Any, loader: Any) -> Steps:
            persists = getattr(loader, "persistent_workers", False)
            if hasattr(loader, "_taskd_place") or not (persists or (passes and not keeps_itself(loader))):
                yield ORIGINAL
                return
            line = iterated_at()
            before = torch.default_generator.get_state()
            yield ORIGINAL
            if self._knows_persistent(line, loader) if persists else self._knows_pass(line, iterator):
                torch.default_generator.set_state(before)

        dataloader._BaseDataLoaderIter.__init__ = around(own, noted)  # type: ignore[method-assign]

    def stop(self) -> None:
        """Restore torch's class."""
        if self._own is not None:
            dataloader._BaseDataLoaderIter.__init__ = self._own  # type: ignore[method-assign]
            self._own = None

    def enter(self) -> None:
        """Begin a call of the training function."""
        self._runs = True

    def leave(self) -> None:
        """End the call: the next one makes the loaders again that end now."""
        self._runs = False

    def pack(self) -> bytes:
        """Encode the counts, as b"" if there are none. Return the same object as before if they have not changed."""
        open_passes = self._find_open() if self._passes else {}
        if self._packed is None or open_passes != self._open:
            self._open = open_passes
            made = {line: len(loaders) for line, loaders in self._made.items()}
            lines = (made.keys() | self._restored.keys()) - self._anew
            counts = {line: max(made.get(line, 0), self._restored.get(line, 0)) for line in sorted(lines)}
            self._packed = msgspec.msgpack.encode((counts, open_passes)) if counts or open_passes else b""
        return self._packed

    def unpack(self, data: bytes | None) -> None:
        """Go back to recorded counts. None changes nothing: the position has no counts."""
        if data is None:
            return
        found = msgspec.msgpack.decode(data, type=tuple[_Counts, _Counts]) if data else ({}, {})
        self._restored, self._begun_again = found
        self._passes.clear()  # they have ended with the call of the training function
        for line, made in self._made.items():
            count = self._restored.get(line, 0)
            for known in made[count:]:
                loader = known()
                if loader is not None:
                    loader._iterator = None
            del made[count:]
        self._packed = None

    # Inside.

    def _knows_pass(self, line: str, iterator: Any) -> bool:
        """Count the iterator of a pass. Return whether its number was drawn before the restored position."""
        alive = [one for one in self._passes.get(line, ()) if one() is not None]
        self._passes[line] = [*alive, weakref.ref(iterator)]
        again = self._begun_again.pop(line, 0)
        if again > 1:
            self._begun_again[line] = again - 1
        return again > 0

    def _knows_persistent(self, line: str, loader: Any) -> bool:
        """Count the iterator of a loader that keeps it. Return whether a predecessor has drawn its number."""
        made = self._made.setdefault(line, [])
        known = line not in self._anew and len(made) < self._restored.get(line, 0)
        made.append(weakref.ref(loader, self._forget))
        self._packed = None
        return known

    def _find_open(self) -> _Counts:
        """Count the passes that are under way, and forget those that have ended."""
        for line, passes in list(self._passes.items()):
            self._passes[line] = [one for one in passes if one() is not None]
            if not self._passes[line]:
                del self._passes[line]
        counts = {line: sum(is_in_the_middle(one()) for one in passes) for line, passes in self._passes.items()}
        return {line: count for line, count in counts.items() if count}

    def _forget(self, gone: "weakref.ref[Any]") -> None:
        for line, made in self._made.items():
            if gone in made:
                made.remove(gone)
                if self._runs:
                    self._anew.add(line)
        self._packed = None
