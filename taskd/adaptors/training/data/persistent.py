"""Iterators of loaders with persistent workers that are no part of the state, such as an evaluation's.

Rules:

1. Such a loader makes one iterator in each process, and draws a seed from torch's generator as it does. A process that
   takes a rank over makes it again, so its generator would be one number ahead of where the rank has been before.
2. Each process counts the living ones, by the line of the script that begins the loop. The counts are recorded with the
   data position of each commit.
3. As many as the restored position counts are made without a draw. Those that this process has made since are let go
   of: the step that is done again makes them again, and draws.
4. A line whose loader has ended while the function ran makes a new loader each time, and draws in every process: it is
   not counted.
"""

import weakref
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import dataloader

from taskd.adaptors.training.data.strays import iterated_at
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

OF_ITERATORS: Final = "\0iterators"
"""Where the counts stand among the data positions."""


class PersistentIterators:
    """Those of one process, made while its training function runs."""

    def __init__(self) -> None:
        self._made: dict[str, list[weakref.ref[Any]]] = {}
        self._restored: dict[str, int] = {}
        self._packed: bytes | None = None
        self._own: Any = None
        self._runs = False
        self._anew: set[str] = set()

    def watch(self) -> None:
        """Follow the iterators that are made from now on."""
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
        """Put torch back."""
        if self._own is not None:
            dataloader._BaseDataLoaderIter.__init__ = self._own  # type: ignore[method-assign]
            self._own = None

    def enter(self) -> None:
        """The training function is called."""
        self._runs = True

    def leave(self) -> None:
        """It was left: loaders that end now are its own, and it makes them again."""
        self._runs = False

    def pack(self) -> bytes:
        """Encode the counts. The same object as before if nothing has changed."""
        if self._packed is None:
            made = {line: len(loaders) for line, loaders in self._made.items()}
            lines = (made.keys() | self._restored.keys()) - self._anew
            counts = {line: max(made.get(line, 0), self._restored.get(line, 0)) for line in sorted(lines)}
            self._packed = msgspec.msgpack.encode(counts)
        return self._packed

    def unpack(self, data: bytes | None) -> None:
        """Go back to these counts; None: nothing was recorded, so all stays as it is."""
        if data is None:
            return
        self._restored = msgspec.msgpack.decode(data, type=dict[str, int])
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
