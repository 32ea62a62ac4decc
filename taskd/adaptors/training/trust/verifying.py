"""`verify="replicas"`: digests of a rank's state every so many steps, for the manager to compare.

Rules:

1. A digest covers the parameters that optimizers train and the optimizers' own state; of sharded ones this rank's part.
   It leaves out buffers, which may differ between replicas (the mean of a BatchNorm), and parameters that are not
   trained, which may differ too.
2. It needs no collective and none of training's groups: the digests go with this rank's reports to its agent.
3. A small state in the host's memory is read in the commit. Else a thread reads it while the next forward and backward
   pass run, and the optimizers wait for it before they change anything.
4. If a tensor was written to meanwhile after all (its version shows that), the step is left out. This is logged once.
5. At a fault no code waits for a digest.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from taskd.adaptors.training.digests import digest
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.partitions import whole
from taskd.adaptors.training.sharding.shards import local, trained
from taskd.adaptors.training.streams import beside, event_of
from taskd.runtime.system.hidden import HiddenThread, forget
from taskd.runtime.worker.pulse import NEVER
from taskd.wire.state import StateDigest

_log = logging.getLogger(__name__)
AT_ONCE_BYTES: Final = 1 << 24
"""Size of a state in the host's memory from which on a thread reads it."""
_KEPT: Final = 4
"""Number of newest digests in each report: if a report is lost, the next one has them too."""


class StateVerifier:
    """Digests of one rank's state.

    Args:
        parts: parts of the state.
        every: steps from one digest to the next.
    """

    def __init__(self, parts: Parts, every: int) -> None:
        self._parts, self._every = parts, every
        self.next = NEVER
        """Step whose commit must be reported by a call of `due`."""
        self.digests: tuple[StateDigest, ...] = ()
        """Newest digests of the present world."""
        self.stall_s = 0.0
        """Seconds that the main thread worked or waited since the world was formed."""
        self._reading: StateReading | None = None
        self._tell: Callable[[], None] = lambda: None
        self._told = False
        settle = self._settler()
        for optimizer in parts.optimizers:
            optimizer.register_step_pre_hook(settle)

    @contextmanager
    def running(self, step: int, tell: Callable[[], None]) -> Iterator[None]:
        """Digest the state while the body runs, from `step` on. `tell` is called for each digest, on either thread."""
        self.digests, self.stall_s, self._tell = (), 0.0, tell
        self.next = self._after(step)
        try:
            yield
            if self._reading is not None:
                self._reading.wait()  # its digest is reported with the end
        except BaseException:
            self.digests = ()
            raise
        finally:
            self.next, self._reading = NEVER, None

    def due(self, step: int) -> None:
        """Digest the state at the commit of step `next`. A later step only sets the next one."""
        begun_s = time.monotonic()
        on_time = step == self.next
        self.next = self._after(step)
        if on_time:
            weights, optimizer = held_by(self._parts)
            tensors = [*weights, *optimizer]
            reading = self._reading = StateReading(step, weights, optimizer)
            at_once = sum(tensor.numel() * tensor.element_size() for tensor in tensors) < AT_ONCE_BYTES
            if at_once and all(tensor.device.type == "cpu" for tensor in tensors):
                self._read(reading)
            else:
                HiddenThread(lambda: self._read(reading), "taskd-verify")
        self.stall_s += time.monotonic() - begun_s

    def _after(self, step: int) -> int:
        return (step // self._every + 1) * self._every

    def _read(self, reading: "StateReading") -> None:
        with reading.reading() as found:
            if self._reading is not reading:
                return
            if reading.spoilt and not self._told:
                self._told = True
                _log.warning(
                    "a tensor was changed between a commit and the next optimizer step, while it was digested: step %d "
                    "is not compared between the replicas; change parameters before the commit",
                    reading.step,
                )
                forget()
            self.digests = (*self.digests, found)[-_KEPT:]
        self._tell()

    def _settler(self) -> Callable[..., None]:
        """Return the hook as a plain function: an optimizer that has it can still be copied."""

        def settle(*_: object) -> None:
            reading = self._reading
            if reading is not None and reading.busy:
                begun_s = time.monotonic()
                reading.wait()
                self.stall_s += time.monotonic() - begun_s

        return settle


class StateReading:
    """One digest of a state that is being read."""

    def __init__(self, step: int, weights: list[torch.Tensor], optimizer: list[torch.Tensor]) -> None:
        self.step = step
        self.spoilt = False
        self._weights, self._optimizer = weights, optimizer
        self._versions = [tensor._version for tensor in (*weights, *optimizer)]
        self._ready = event_of((*weights, *optimizer))
        self._done = threading.Event()

    @property
    def busy(self) -> bool:
        """True until all is read."""
        return not self._done.is_set()

    def wait(self) -> None:
        """Wait until all is read."""
        self._done.wait()

    @contextmanager
    def reading(self) -> Iterator[StateDigest]:
        """Read the state and yield its digest. Release all waiting threads at the end, whatever has happened."""
        weights, optimizer = self._weights, self._optimizer
        self._weights, self._optimizer = [], []
        try:
            with beside(self._ready):
                found = StateDigest(step=self.step, weights=_digest(weights), optimizer=_digest(optimizer))
            self.spoilt = [tensor._version for tensor in (*weights, *optimizer)] != self._versions
            yield StateDigest(step=self.step, weights="", optimizer="") if self.spoilt else found
        finally:
            self._done.set()


def held_by(parts: Parts) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the trained parameters and the optimizers' state of this rank's parts, in an order that all replicas have.

    Numbers in the optimizers' state stand in a tensor of their own.
    """
    kept: list[torch.Tensor] = []
    numbers: list[float] = []
    for optimizer in whole(parts.optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _collect(optimizer.state.get(parameter), kept, numbers)
    return trained(parts), [*kept, torch.tensor(numbers, dtype=torch.float64)]


def _collect(value: Any, tensors: list[torch.Tensor], numbers: list[float]) -> None:
    """Collect the tensors and numbers in a tree; a dict's by sorted keys, since a restored dict has another order."""
    if isinstance(value, torch.Tensor):
        tensors.append(local(value))
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            _collect(value[key], tensors, numbers)
    elif isinstance(value, list | tuple):
        for one in value:
            _collect(one, tensors, numbers)
    elif isinstance(value, int | float):
        numbers.append(float(value))


def _digest(tensors: list[torch.Tensor]) -> str:
    try:
        return digest(tensors)
    except (RuntimeError, TypeError, NotImplementedError) as error:  # a kind of tensor whose memory cannot be read
        _log.debug("the state is not digested: %s", error)
        return ""
