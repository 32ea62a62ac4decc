"""Iterators of data loaders with persistent workers outside of the state, such as an evaluation's.

Rules:

1. Such a loader makes one iterator in each process, and draws a seed for it from torch's generator. A new process of a
   rank makes the iterator again, and its generator would be one number ahead of its predecessor's.
2. Each process counts these iterators by the script's line that begins the loop. The counts are recorded with the data
   position of each commit.
3. A restored position counts iterators that its rank had made by then. The process makes that many without a draw. It
   drops those that it has made since: the repeated step makes them again, with a draw.
4. If a loader ends while the training function runs, its line makes a new loader each time, and draws in every process.
   Such a line is not counted.
"""

import weakref
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import dataloader

from taskd.adaptors.training.data.strays import iterated_at
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

OF_ITERATORS: Final = "\0iterators"
"""Name of the counts among the data positions."""


class PersistentIterators:
    """Iterators that one process makes while its training function runs."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {}
        self._restored: dict[str, int] = {}
        self._packed: bytes | None = None
        self._own: Any = None
        self._runs = False
        self._anew: set[str] = set()

    def watch(self) -> None:
        """Count iterators from now on."""
        if self._own is not None:
            return
        own = self._own = vars(dataloader._BaseDataLoaderIter)["__init__"]

        def noted(_iterator: Any, loader: Any) -> Steps:
            if not getattr(loader, "persistent_workers", False) or hasattr(loader, "_taskd_place"):
                yield ORIGINAL
                return
            line = iterated_at()
            made = self._made.setdefault(line, [])
            if line in self._anew or len(made) >= self._restored.get(line, 0):
                yield ORIGINAL
            else:
                before = torch.default_generator.get_state()
                yield ORIGINAL
                torch.default_generator.set_state(before)
            made.append(weakref.ref(loader, self._forget))
            self._packed = None

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
        if self._packed is None:
            made = {line: len(loaders) for line, loaders in self._made.items()}
            lines = (made.keys() | self._restored.keys()) - self._anew
            counts = {line: max(made.get(line, 0), self._restored.get(line, 0)) for line in sorted(lines)}
            self._packed = msgspec.msgpack.encode(counts) if counts else b""
        return self._packed

    def unpack(self, data: bytes | None) -> None:
        """Go back to recorded counts. None changes nothing: the position has no counts."""
        if data is None:
            return
        self._restored = msgspec.msgpack.decode(data, type=dict[str, int]) if data else {}
        for line, made in self._made.items():
            count = self._restored.get(line, 0)
            for known in made[count:]:
                loader = known()
                if loader is not None:
                    loader._iterator = None
            del made[count:]
        self._packed = None

    # Inside.

    def _forget(self, gone: "weakref.ref[Any]") -> None:
        for line, made in self._made.items():
            if gone in made:
                made.remove(gone)
                if self._runs:
                    self._anew.add(line)
        self._packed = None
