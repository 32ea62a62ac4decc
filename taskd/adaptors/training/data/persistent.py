"""Iterators of data loaders outside of the state: a new process begins them again without a second draw.

Rules:

1. A loader with persistent workers makes one iterator in each process, and draws a seed for it from torch's generator.
   A new process of a rank makes the iterator again, and its generator would be one number ahead of its predecessor's.
2. Each process counts these iterators by the script's line that begins the loop. The counts are recorded with the data
   position of each commit.
3. A restored position counts iterators that its rank had made by then. The process makes that many without a draw. It
   drops those that it has made since: the repeated step makes them again, with a draw.
4. If a loader ends while the training function runs, its line makes a new loader each time, and draws in every process.
   Such a line is not counted.
5. Any other loader makes an iterator for each pass. A position counts the unfinished passes by line. When the training
   function begins these again, their iterators draw no seed.
"""

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import dataloader

from taskd.adaptors.training.data.strays import iterated_at, keeps_itself, length_of
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

OF_ITERATORS: Final = "\0iterators"
"""Name of the counts among the data positions."""

_Counts = dict[str, int]
"""Numbers of iterators, by the line that begins the loop."""


@dataclass(slots=True)
class _Pass:
    """Pass of a loader that was begun at `line`. `batches`: their number, once it was needed."""

    line: str
    batches: float | None = None

    def is_open(self, iterator: Any) -> bool:
        """Return whether the pass has begun and not ended."""
        if not iterator._num_yielded:
            return False
        if self.batches is None:
            self.batches = length_of(iterator)
        return bool(iterator._num_yielded < self.batches)


class PersistentIterators:
    """Iterators that one process makes while its training function runs."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {}
        self._restored: _Counts = {}
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        """Passes of living iterators."""
        self._to_resume: Counter[str] = Counter()
        """Unfinished passes of the restored position that were not begun again yet."""
        self._open: _Counts = {}
        """Unfinished passes of the newest packed position."""
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
            before = torch.default_generator.get_state() if self._has_drawn(line, persists=persists) else None
            yield ORIGINAL
            if before is not None:
                torch.default_generator.set_state(before)
            self._count(line, iterator, loader, persists=persists)

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
        open_passes = self._open_passes() if self._passes else {}
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
        self._restored, unfinished = msgspec.msgpack.decode(data, type=tuple[_Counts, _Counts]) if data else ({}, {})
        self._to_resume = Counter(unfinished)
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

    def _has_drawn(self, line: str, *, persists: bool) -> bool:
        """Return whether the rank has drawn the seed of this new iterator before the restored position."""
        if persists:
            return line not in self._anew and len(self._made.get(line, ())) < self._restored.get(line, 0)
        return self._to_resume[line] > 0

    def _count(self, line: str, iterator: Any, loader: Any, *, persists: bool) -> None:
        if persists:
            self._made.setdefault(line, []).append(weakref.ref(loader, self._forget))
            self._packed = None
        else:
            self._to_resume[line] -= 1
            self._passes[iterator] = _Pass(line)

    def _open_passes(self) -> _Counts:
        return dict(Counter(one.line for iterator, one in self._passes.items() if one.is_open(iterator)))

    def _forget(self, gone: "weakref.ref[Any]") -> None:
        for line, made in self._made.items():
            if gone in made:
                made.remove(gone)
                if self._runs:
                    self._anew.add(line)
        self._packed = None
