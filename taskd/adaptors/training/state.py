"""`TrainState`: what makes up one rank's training, counted in committed steps.

Rules:

1. `commit` says: this step is done. It counts, and puts down where this rank stands in random numbers and data; it
   copies no weights and costs microseconds.
2. Between two commits the hooks of the optimizers tell what the state in memory is worth: CLEAN while none has
   stepped, STEPPED when each has stepped exactly once, TORN in all other cases.
3. A forward pass of the next step may change buffers (BatchNorm) although the weights are still clean. They are copied
   before the first forward after a commit and put back by `rollback`.
4. Whoever reads these methods at a fault does so on the thread that trains, outside of the training function.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from taskd.adaptors.training.parts import Parts, advances_by_itself
from taskd.adaptors.training.payload import Packer, unpack
from taskd.adaptors.training.position_file import CAPACITY_BYTES, PositionFile, Slot
from taskd.adaptors.training.rng import RngCapture
from taskd.errors import ConfigError
from taskd.wire.messages import Condition

_log = logging.getLogger(__name__)


class Positions(Protocol):
    """Where positions are kept: a `PositionFile`, or memory where no file can be had."""

    def write(self, slot: Slot, step: int, payload: bytes) -> None:
        """Put `payload` down for `step`."""

    def read(self) -> dict[int, bytes]:
        """Return the payload of each step that is there."""


class _Memory:
    """Positions that die with the process; good enough for a survivor."""

    def __init__(self) -> None:
        self._slots: dict[tuple[Slot, int], tuple[int, bytes]] = {}

    def write(self, slot: Slot, step: int, payload: bytes) -> None:
        key = (slot, step % (2 if slot is Slot.COMMITTED else 3))
        self._slots.pop(key, None)  # the newest is the last
        self._slots[key] = (step, payload)

    def read(self) -> dict[int, bytes]:
        return dict(self._slots.values())


class TrainState:
    """The objects that one rank trains with, and the count of its committed steps.

    Pass the model, the optimizers and whatever else has `state_dict()` and `load_state_dict()` by keyword; each is then
    an attribute. Samplers and data loaders (by type, or named `sampler`, `loader`, `…_sampler`, `…_loader`) are this
    rank's data position; everything else is taken to be equal on all ranks.

    The training function makes a new iterator of its data loader after a recovery, and torch draws a seed for each from
    the global random numbers; a loader that is a part of the state leaves them as they were.

    Attributes:
        step: committed steps. Set it once after loading a checkpoint of your own, before training.
        on_commit: called with the step at the end of each `commit`.

    Raises:
        ConfigError: an argument has the wrong type, or a name that the state itself uses.
    """

    def __init__(self, **parts: Any) -> None:
        clash = [name for name in parts if hasattr(type(self), name) or name in ("step", "on_commit", "parts")]
        if clash:
            raise ConfigError(f"TrainState uses the name {clash[0]!r} itself; pass that argument under another name")
        self.step = 0
        self.on_commit: Callable[[int], None] | None = None
        self.parts = Parts(parts)
        self._positions: Positions = _Memory()
        self._rng = RngCapture()
        self._packer = Packer()
        self._tentative = (-1, b"")  # what the position file has for the step under way
        self._told_too_large = False
        self._empty = False
        self._restoring = False
        self._inside = 0
        self._stepped = [0] * len(self.parts.optimizers)
        self._commits = 0
        self._marks = [scheduler.last_epoch for scheduler in self.parts.schedulers]
        self._steady = True
        self._buffers: list[torch.Tensor] | None = None
        self._saved_buffers: list[torch.Tensor] = []
        self._buffers_touched = False
        self._hook()

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("parts")
        if parts is not None and name in parts.all:
            return parts.all[name]
        raise AttributeError(f"TrainState has no part {name!r}; it has {', '.join(parts.all) if parts else 'none'}")

    # What the training loop calls.

    def commit(self) -> None:
        """Count this step as done and record RNG and data position. To be called last in each step."""
        step = self.step + 1
        payload = self._position()
        self._stepped = [0] * len(self._stepped)
        self.step = step
        self._buffers_touched = False
        if self._tentative != (step, payload):
            self._positions.write(Slot.COMMITTED, step, payload)
        self._commits += 1
        if self._marks:
            self._mark_schedulers()
        if self.on_commit is not None:
            self.on_commit(step)

    # What the recovery calls.

    def attach(self, path: str) -> None:
        """Keep positions in the file at `path` from now on; what a dead process left there is found by `return_to`.

        Raises:
            RestoreError: the file cannot be used.
        """
        self._positions = PositionFile(path)
        self._tentative = (-1, b"")

    def begin(self) -> None:
        """Record where this rank stands before its first step. Called as training begins, but not in a newcomer."""
        self._marks = [scheduler.last_epoch for scheduler in self.parts.schedulers]
        self._positions.write(Slot.COMMITTED, self.step, self._position())

    def declare_empty(self) -> None:
        """Say that this is a newcomer, whose weights are those of its set-up and count for nothing."""
        self._empty = True

    @property
    def has_committed(self) -> bool:
        """Whether this process has committed a step since it began or was last restored from a donor."""
        return self._commits > 0

    def condition(self) -> Condition:
        """Return what the state in memory is worth now."""
        if self._empty:
            return Condition.EMPTY
        if self._restoring or self._inside or any(count > 1 for count in self._stepped):
            return Condition.TORN
        if not any(self._stepped):
            return Condition.CLEAN if self._can_roll_back() else Condition.TORN
        return Condition.STEPPED if all(self._stepped) else Condition.TORN

    def adopt(self) -> str:
        """Count a STEPPED state as committed; return what could not be told about it, or "".

        A scheduler that advanced by one in each commit so far, and has not done so since, is advanced.
        """
        notes = []
        for scheduler, mark in zip(self.parts.schedulers, self._marks, strict=True):
            if scheduler.last_epoch != mark:
                continue
            if self._steady and self._commits and advances_by_itself(scheduler):
                scheduler.step()
            else:
                notes.append(f"it is not known whether the step would have advanced the {type(scheduler).__name__}")
        on_commit, self.on_commit = self.on_commit, None
        self.commit()
        self.on_commit = on_commit
        return "; ".join(notes)

    def rollback(self) -> None:
        """Undo what a forward pass of the unfinished step did to buffers: a CLEAN state is then the committed one."""
        if self._buffers_touched and self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._saved_buffers)
        self._buffers_touched = False

    @contextmanager
    def restoring(self, step: int) -> Iterator[None]:
        """Mark the state TORN while the body fills it, and as committed step `step` when the body ends well."""
        self._restoring = True
        yield
        self.step = step
        self._inside = 0
        self._stepped = [0] * len(self._stepped)
        self._buffers_touched = False
        self._commits = 0
        self._marks = [scheduler.last_epoch for scheduler in self.parts.schedulers]
        self._empty = self._restoring = False

    def drop_gradients(self) -> None:
        """Set every gradient to None."""
        for parameter in self.parts.parameters():
            parameter.grad = None

    def return_to(self, step: int) -> str:
        """Put RNG and data position of `step` back; return what is missing, or "".

        Raises:
            RestoreError: what was recorded cannot be read or put back.
        """
        payload = self._positions.read().get(step)
        if payload is None:
            return (
                f"random numbers and data position of step {step} are not known to this rank: it goes on with its own"
            )
        rng, data = unpack(payload)
        missing = self.parts.unpack_positions(data)
        self._rng.restore(rng)
        return f"the data position of {', '.join(missing)} was not recorded" if missing else ""

    # Inside.

    def _hook(self) -> None:
        for index, optimizer in enumerate(self.parts.optimizers):
            optimizer.register_step_pre_hook(self._before_step)
            optimizer.register_step_post_hook(self._after_step(index))
        for module in self.parts.modules:
            module.register_forward_pre_hook(self._before_forward)
            module.register_forward_hook(self._after_forward)

    def _before_step(self, *_: Any) -> None:
        self._inside += 1

    def _after_step(self, index: int) -> Callable[..., None]:
        def after(*_: Any) -> None:
            self._stepped[index] += 1
            self._inside -= 1

        return after

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        if self._buffers_touched or not module.training:
            return
        if self._buffers is None:
            self._buffers = self._all_buffers()
            self._saved_buffers = [torch.empty_like(buffer) for buffer in self._buffers]
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._saved_buffers, self._buffers)
        self._buffers_touched = True

    def _after_forward(self, module: torch.nn.Module, *_: Any) -> None:
        if module.training and torch.is_grad_enabled():
            step, payload = self.step + 1, self._position()
            self._positions.write(Slot.TENTATIVE, step, payload)
            self._tentative = (step, payload)

    def _all_buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.parts.modules for buffer in module.buffers()]

    def _can_roll_back(self) -> bool:
        """Tell whether the buffers are still the tensors that were saved; a module may have put others there."""
        if not self._buffers_touched or self._buffers is None:
            return True
        now = self._all_buffers()
        return len(now) == len(self._buffers) and all(a is b for a, b in zip(now, self._buffers, strict=True))

    def _mark_schedulers(self) -> None:
        marks = [scheduler.last_epoch for scheduler in self.parts.schedulers]
        self._steady = self._steady and all(new == old + 1 for new, old in zip(marks, self._marks, strict=True))
        self._marks = marks

    def _position(self) -> bytes:
        rng = self._rng.capture()
        if not self.parts.positions:
            return self._packer.pack(rng)
        payload = self._packer.pack(rng, self.parts.pack_positions())
        if len(payload) <= CAPACITY_BYTES:
            return payload
        if not self._told_too_large:
            self._told_too_large = True
            _log.warning(
                "the data position (%s) takes %d bytes, and %d have room: it is not recorded, and after a recovery the "
                "data of a replaced rank is not exactly that of an undisturbed run",
                ", ".join(self.parts.positions),
                len(payload),
                CAPACITY_BYTES,
            )
        return self._packer.pack(rng)
