"""One rank's state on its way into a copy: what is put down at the commit, and what may wait until the optimizers step.

Rules:

1. Parameters and the states of optimizers change in the optimizers' steps alone: the copier's thread puts them down
   while the next forward and backward pass run. Everything else (buffers, averages, random numbers, the data position)
   is put down by the main thread in the commit.
2. A tensor that has been written to meanwhile after all (its version tells) spoils the copy, and is told once.
3. Of a tensor on an accelerator the thread's own stream waits for what the commit's stream has done till then.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from taskd.adaptors.training import tree
from taskd.adaptors.training.copies.copy_file import CopyFile
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.manifest import Framed
from taskd.adaptors.training.packing import pack, pack_place
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.partitions import whole
from taskd.adaptors.training.sharding.shards import local
from taskd.adaptors.training.streams import beside, event_of
from taskd.runtime.system.hidden import forget
from taskd.wire.kinds import JobRank

_log = logging.getLogger(__name__)
_LATER_BYTES: Final = 64 * 1024
"""Smaller tensors are put down at once."""


class Snapshot:
    """The newest of one rank; its memory is that of the file that becomes the copy."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.place = False
        """It holds the rank's data position and random numbers only."""
        self._file: CopyFile | None = None
        self._seal = b""
        self._places: list[tuple[int, int]] = []
        self._later: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._ready: Any = None
        self._down = threading.Event()
        self._down.set()
        self._told = False

    # ---- the main thread

    def take(
        self, recovery: StateRecovery, folder: CopyFolder, of: JobRank, keep: int, fits: Callable[[int], str],
        *, place: bool = False,
    ) -> None:  # fmt: skip
        """Put down what may change before the optimizers step; with `place`, the rank's position only.

        `fits` says why there is no room for copies of so many bytes, or "".

        Raises:
            OSError: there is no room for it.
            TypeError, RuntimeError: the state has something that cannot be put down.
        """
        manifest, tensors = (pack_place(recovery), []) if place else pack(recovery, everything=True)
        self.place, frame = place, Framed.of(manifest)
        self._seal, start = frame.seal, len(frame.data)
        self._places = []
        for tensor in tensors:
            self._places.append((start, tensor.nbytes))
            start += tensor.nbytes
        self.size_bytes = start
        missing = fits(start)
        if missing:
            raise OSError(errno.ENOSPC, missing)
        self._file = file = folder.room(of, start, keep)
        file.bytes(len(frame.data))[:] = frame.data
        stepped = {tensor.untyped_storage().data_ptr() for tensor in _stepped(recovery)}
        self._later = []
        for tensor, (at, size_bytes) in zip(tensors, self._places, strict=True):
            into = file.tensor(at, size_bytes)
            if size_bytes >= _LATER_BYTES and tensor.untyped_storage().data_ptr() in stepped:
                self._later.append((tensor, into, tensor._version))
            else:
                into.copy_(tree.as_bytes(tensor.detach().contiguous()))
        self._ready = event_of([tensor for tensor, *_ in self._later])
        if self._later:
            self._down.clear()

    @property
    def busy(self) -> bool:
        """Whether something is not put down yet."""
        return not self._down.is_set()

    def wait(self) -> None:
        """Until all is put down."""
        self._down.wait()

    # ---- the copier's thread

    def complete(self) -> CopyFile | None:
        """Put the rest down; return the file, None if something has changed meanwhile."""
        file, later = self._file, self._later
        try:
            with beside(self._ready):
                for tensor, into, _ in later:
                    into.copy_(tree.as_bytes(tensor.contiguous()))
            spoilt = [tensor for tensor, _, version in later if tensor._version != version]
        finally:
            self._later = []
            self._down.set()
        if spoilt and not self._told:
            self._told = True
            _log.warning(
                "a tensor of shape %s was changed between a commit and the next optimizer step, while it was copied: "
                "there is no copy of that step; change parameters before the commit",
                tuple(spoilt[0].shape),
            )
            forget()
        return None if spoilt else file

    def digest(self) -> str:
        """Of the whole stream: what describes the tensors, and these as they were put down."""
        assert self._file is not None
        tensors = (self._file.tensor(at, size_bytes) for at, size_bytes in self._places if size_bytes)
        return digest(tensors, before=self._seal)

    def memory(self) -> memoryview:
        """The whole stream."""
        assert self._file is not None
        return self._file.bytes(self.size_bytes)

    def release(self) -> None:
        """Nobody puts anything down any more: let who waits go on."""
        self._down.set()

    def drop(self) -> None:
        """Let go of the state's tensors."""
        self._later, self._file, self._ready = [], None, None
        self._down.set()


def _stepped(recovery: StateRecovery) -> Iterable[torch.Tensor]:
    """What the optimizers change in their steps."""
    for optimizer in whole(recovery.parts.optimizers):
        if any(group.get("capturable") for group in optimizer.param_groups):
            continue  # a CUDA graph may replay its step without hooks: copy its tensors at once
        for group in optimizer.param_groups:
            yield from map(local, group["params"])
        for state in optimizer.state.values():
            yield from (local(value) for value in state.values() if isinstance(value, torch.Tensor))
