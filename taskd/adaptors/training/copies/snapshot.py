"""Snapshot of one rank's state for a copy: a part is copied in the commit, the rest before the optimizers step.

Rules:

1. Parameters and optimizer states change only in the optimizers' steps. So the copier's thread copies them while the
   next forward and backward pass run. The main thread copies everything else in the commit: buffers, averages, random
   numbers and the data position.
2. If such a tensor is written to meanwhile all the same (its version shows it), the copy is spoilt. This is logged
   once.
3. If tensors are on an accelerator, the thread's own stream waits for the earlier work of the commit's stream.
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
"""Size below which tensors are copied in the commit."""


class Snapshot:
    """The newest snapshot of one rank. Its memory is that of the file that becomes the copy."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.place = False
        """True if it holds only the rank's data position and random numbers."""
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
        """Copy all values that may change before the optimizers step; with `place`, only the rank's position.

        `fits` returns why there is no room for copies of that many bytes, or "".

        Raises:
            OSError: there is no room for the copy.
            TypeError, RuntimeError: the state holds a value that cannot be copied.
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
        """True while some tensors are not copied yet."""
        return not self._down.is_set()

    def wait(self) -> None:
        """Wait until all tensors are copied."""
        self._down.wait()

    # ---- the copier's thread

    def complete(self) -> CopyFile | None:
        """Copy the rest; return the file, or None if a tensor has changed meanwhile."""
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
        """Return the digest of the whole stream: the description of the tensors, and the tensors as copied."""
        assert self._file is not None
        tensors = (self._file.tensor(at, size_bytes) for at, size_bytes in self._places if size_bytes)
        return digest(tensors, before=self._seal)

    def memory(self) -> memoryview:
        """Return the memory of the whole stream."""
        assert self._file is not None
        return self._file.bytes(self.size_bytes)

    def release(self) -> None:
        """Release threads in `wait`, because nothing is copied any more."""
        self._down.set()

    def drop(self) -> None:
        """Release the state's tensors and the file."""
        self._later, self._file, self._ready = [], None, None
        self._down.set()


def _stepped(recovery: StateRecovery) -> Iterable[torch.Tensor]:
    """Yield the tensors that the optimizers change in their steps."""
    for optimizer in whole(recovery.parts.optimizers):
        if any(group.get("capturable") for group in optimizer.param_groups):
            continue  # a CUDA graph may replay its step without hooks: copy its tensors at once
        for group in optimizer.param_groups:
            yield from map(local, group["params"])
        for state in optimizer.state.values():
            yield from (local(value) for value in state.values() if isinstance(value, torch.Tensor))
