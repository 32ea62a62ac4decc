"""`TrainState`: what makes up one rank's training, counted in committed steps.

Rules:

1. `commit` counts the step, and puts down where this rank stands in random numbers and data. It copies no weights.
2. Between two commits the hooks of the optimizers tell what the state in memory is worth: CLEAN while none has
   changed anything, or what was changed can be undone (see `undo`); STEPPED when each has stepped exactly once; TORN in
   all other cases, a commit that was left half way among them.
3. A forward pass may change buffers (BatchNorm) although the weights are still clean: `rollback` puts them back.
4. With a seed, the random numbers of a step come from its number, and none are put down.
5. Whoever reads these methods at a fault does so on the thread that trains, outside of the training function.
"""

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from taskd.adaptors.training.afterwards import Afterwards
from taskd.adaptors.training.buffers import Buffers
from taskd.adaptors.training.failures import Failures
from taskd.adaptors.training.finite import Losses
from taskd.adaptors.training.followers import Followers
from taskd.adaptors.training.hooks import StepHooks
from taskd.adaptors.training.parts import Parts
from taskd.adaptors.training.payload import pack, unpack
from taskd.adaptors.training.pending import Pending
from taskd.adaptors.training.position_file import PositionFile, Slot
from taskd.adaptors.training.positions import PositionMemory, Positions, not_known
from taskd.adaptors.training.rest import Rest
from taskd.adaptors.training.rng import RngCapture
from taskd.adaptors.training.seeds import Seeds
from taskd.adaptors.training.shares import Share, Shares
from taskd.adaptors.training.undo import Undo
from taskd.errors import ConfigError, ShimError
from taskd.runtime.pulse import Pulse
from taskd.wire.messages import Condition

_log = logging.getLogger(__name__)
_OWN_NAMES = ("step", "epoch", "on_commit", "on_non_finite", "shows_steps", "parts", "committing")


def _leaver(state: "TrainState") -> Callable[[], None]:
    """What a forked child does: the file is its parent's."""
    known = weakref.ref(state)

    def leave() -> None:
        left = known()
        if left is not None:
            left._positions, left._count, left.shows_steps = PositionMemory(), left._count_slowly, False

    return leave


class TrainState:
    """The objects that one rank trains with, and the count of its committed steps.

    Pass the model, the optimizers and whatever else has `state_dict()` and `load_state_dict()` by keyword; each is then
    an attribute. Samplers and data loaders (by type, or named `sampler`, `loader`, `…_sampler`, `…_loader`) are this
    rank's data position; everything else is taken to be equal on all ranks.

    With `seed`, python's, numpy's and torch's global generators are seeded anew for each step of each rank, from the
    seed, the rank and the step: what they draw is then exact on whatever node, and among however many ranks, a step is
    done. Without it each rank's own states are put back, as far as they are known (docs/exactness.md).

    A `DataLoader` that is a part of the state keeps its exact place: the training function makes a new iterator of it
    after a recovery, and that goes on behind the batch of the last committed step. What its order and its workers draw
    comes from seeds of its own, and the global random numbers are left as they were.

    Attributes:
        step: committed steps. Set it once after loading a checkpoint of your own, before training.
        on_commit: called with the step at the end of `commit`; the resilient function sets it.
        on_non_finite: called with step and value when the loss given to `commit` is the first that is not finite.
        shows_steps, committing: whether `commit` shows the step in the black box too; whether it is counting one now.

    Raises:
        ConfigError: an argument has the wrong type, or a name that the state itself uses.
    """

    def __init__(self, *, seed: int | None = None, **parts: Any) -> None:
        clash = [name for name in parts if hasattr(type(self), name) or name in _OWN_NAMES]
        if clash:
            raise ConfigError(f"TrainState uses the name {clash[0]!r} itself; pass that argument under another name")
        self.step = 0
        self.on_commit: Callable[[int], None] | None = None
        self.on_non_finite: Callable[[int, str], None] | None = None
        self.parts = Parts(parts)
        self._positions: Positions = PositionMemory()
        self._seeds = None if seed is None else Seeds(seed)
        self._rng = self._seeds or RngCapture()
        self._rank: int | None = None
        self._losses = Losses(self._tell_non_finite)
        self._batches = Shares(self._seeds)
        self._empty = False
        self._start: dict[int, bytes] = {}
        self.committing = self._restoring = self._adopting = False
        self.shows_steps = False
        self._commits = 0
        self._followers = Followers(self.parts.replicated)
        self.parts.epochs.ended = self._followers.hold
        self._buffers = Buffers(self.parts.modules, self.parts.optimizers, self.parts.plain)
        self._afterwards = Afterwards(self.parts.modules)
        self._hooks = StepHooks(self.parts, self._buffers.save, self._record_tentative)
        self._pending = Pending(self.parts)
        self._undo = Undo(self.parts, lambda: sum(self._hooks.counts[1::2]), self._can_copy)
        self.failures = Failures(lambda: sum(self._hooks.counts))
        self._count: Callable[[int], None] = self._count_slowly

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("parts")
        if parts is not None and name in parts.all:
            return parts.all[name]
        raise AttributeError(f"TrainState has no part {name!r}; it has {', '.join(parts.all) if parts else 'none'}")

    # What the training loop calls.

    def commit(self, loss: float | torch.Tensor | None = None) -> None:
        """Count this step as done and record RNG and data position. To be called last in each step.

        With the step's `loss`, a number or a tensor of one element, taskd reports the first that is NaN or infinite;
        training goes on. A tensor on an accelerator is looked at one commit later, or when the device has come so far:
        no step waits for it.
        """
        self.committing = True
        self.step = step = self.step + 1
        if self._pending.armed or not self._hooks.counts[1]:
            self._pending.committed(step, stepped=any(self._hooks.stepped))
        self._buffers.committed()
        if self.failures.any:
            self.failures.commit()
        if self._seeds is not None:
            self._seeds.sow(self._own_rank(), step)
        self._count(step)
        self._commits += 1
        if self._followers.any:
            self._followers.mark()
        if self._undo.busy:
            self._undo.forget()
        self.committing = False
        if loss is not None:
            self._losses.look(loss, step)
        if self.on_commit is not None:
            self.on_commit(step)
        if self._afterwards.any and not self._adopting:
            self._afterwards.run(step)

    def after_commit(self, work: Callable[[int], object], *, every: int = 1) -> None:
        """Have `work(step)` done after every so many commits, on all ranks: an evaluation, a checkpoint.

        It is done inside `commit`. If a rank dies in it, or before the next commit, all ranks do it again after the
        recovery, so it is to be such that doing it twice does no harm. To be called before training.

        Raises:
            ConfigError: `work` is no function, or `every` no number from 1 on.
        """
        self._afterwards.add(work, every)

    def do_again(self) -> None:
        """Do what follows the present step's commit. Called after a recovery, before the training goes on."""
        self._afterwards.run(self.step)

    @property
    def epoch(self) -> int:
        """The epoch of `epochs`. Set it once after loading a checkpoint of your own, before training."""
        return self.parts.epochs.now

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.parts.epochs.start_at(epoch)

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs that are left of `total`, for the outer loop of the training function.

        for epoch in state.epochs(10):
            sampler.set_epoch(epoch)
            for batch in loader:  # a part of the state: goes on behind the last committed step
                ...
                state.commit()
            ...  # done again after a recovery, if the next epoch has not committed a step
        """
        return self.parts.epochs.up_to(total, self._begin_epochs)

    def shares(self) -> Iterable[Share]:
        """The shares of the global batch that this rank works at in this step.

        One, of scale 1, while all ranks are there; else more. The batch is a function of `step`, `index` and `count`:

            optimizer.zero_grad()
            for share in state.shares():
                loss = loss_function(model, batch(state.step, share.index, share.count)) * share.scale
                loss.backward()
            optimizer.step()
            state.commit()

        DDP averages the gradients once, in the last share. A script that adds up the gradients of several micro-batches
        does that within the share, as it does without shares: all but the last within `model.no_sync()`.

        With a seed, a share's random numbers are the same on whichever rank it is worked at.

        Raises:
            ConfigError: while they are gone through, with fewer ranks: the script has switched on by hand the
                communication (`require_backward_grad_sync`) of a share that is not the last.
        """
        return self._batches.of_step(self.step)

    # What the recovery calls.

    def attach(self, path: str) -> None:
        """Keep positions in the file at `path` from now on; what a dead process left there is found by `return_to`.

        Raises:
            RestoreError: the file cannot be used.
        """
        self._positions = file = PositionFile(path)
        os.register_at_fork(after_in_child=_leaver(self))
        sources = None if self.parts.positions or self.parts.epochs.used else self._rng.sources()
        if sources is not None:
            try:
                pulse = Pulse(self, file.target, sources, self._hooks.counts, (self._record, self._record_tentative))
            except ShimError as error:
                _log.debug("steps are counted in Python: %s", error)
                return
            self._hooks.use(pulse)
            self._count = pulse.commit
            self.shows_steps = True

    def begin(self, rank: int | None = None) -> None:
        """Record where this rank stands before its first step. Called as training begins, but not in a newcomer.

        `rank` is that in the job; if it is not given, that of `torch.distributed`.
        """
        self._rank = rank
        self._buffers.begin()
        self._followers.settle()
        if self._seeds is not None:
            self._seeds.sow(self._own_rank(), self.step)
        self._record()

    def enter_world(self, slot: int, rank: int, world_size: int, replicas: int) -> None:
        """Say that the job's rank `slot` is `rank` of `world_size` now, and that the full world has `replicas`."""
        self._rank = slot
        self._batches.enter(rank, world_size, replicas, self.parts.wrappers)

    @property
    def uses_shares(self) -> bool:
        """Whether the script has asked for its shares of the global batch."""
        return self._batches.used

    def declare_empty(self) -> None:
        """Say that this is a newcomer, whose weights count for nothing."""
        self._empty = True
        self._buffers.begin()
        rng = self._rng.capture()
        self._start = {self.step: pack(rng, self.parts.data_position(rng))}

    @property
    def between_steps(self) -> bool:
        """Whether a step is committed, and no training forward pass has ended since."""
        return self.step > 0 and self.step + 1 not in self._positions.read()

    @property
    def has_committed(self) -> bool:
        """Whether this process has committed a step since it began or was last restored from a donor."""
        return self._commits > 0

    def condition(self, error: BaseException | None = None) -> Condition:
        """Return what the state in memory is worth now; `error` is that by which the training was just left."""
        if self._empty:
            return Condition.EMPTY
        if self._restoring or self.committing or self.failures.committed:
            return Condition.TORN
        if self._undo.ready or self._hooks.untouched(self._undo.untouched):
            return Condition.CLEAN if self._can_be_done_again() else Condition.TORN
        if self.failures.stepped or self._hooks.torn or not all(self._hooks.stepped):
            return Condition.TORN
        if error is not None:
            self._followers.rest = Rest(error, self.commit)
        return Condition.TORN if self._followers.lag(self.step + 1, known=self._commits > 0) else Condition.STEPPED

    @property
    def left_out(self) -> str:
        """`file:line` of the first work that a STEPPED state's own step had still to do; "" for none."""
        return self._followers.rest.line

    def adopt(self) -> None:
        """Count a STEPPED state as committed, with the schedulers and averages that have followed in each step."""
        self.failures.forget()
        worked_at = self.position(self.step + 1)
        if worked_at and (data := unpack(worked_at)[1]):  # the loop's iterator has gone with the loop
            self.parts.unpack_positions(data)
        self._followers.complete()
        on_commit, self.on_commit, self._adopting = self.on_commit, None, True
        self.commit()
        self.on_commit, self._adopting = on_commit, False

    def rollback(self) -> str:
        """Undo what was done since the commit: a CLEAN state is then the committed one. Return what was left, or ""."""
        if self._undo.ready:
            self._undo.apply()
            self._followers.settle()
        self.failures.forget()
        note = self._followers.rollback()
        self._buffers.put_back()
        self._followers.refresh()
        self._hooks.reset()
        return note

    @contextmanager
    def restoring(self, step: int) -> Iterator[None]:
        """Mark the state TORN while the body fills it, and as committed step `step` when the body ends well."""
        self._restoring = True
        yield
        self.step = step
        self._hooks.reset()
        for held in (self._undo, self.failures, self._losses):
            held.forget()
        self._buffers.touched = False
        self._commits = 0
        self._followers.settle()
        self._empty = self._restoring = self.committing = False

    def drop_step(self) -> None:
        """Let go of a step that was interrupted: no gradient is left, and no evaluation goes on."""
        for parameter in self.parts.parameters():
            parameter.grad = None
        self._pending.forget()
        self._hooks.train_on()

    def position(self, step: int) -> bytes:
        """What is recorded of `step`, to be lent to a rank that has nothing; empty if nothing is.

        Of the step with which its set-up ended a newcomer knows it in any case: whom it replaces may have died before
        it put down anything, and has come to the same place.
        """
        return self._positions.read().get(step) or self._start.get(step, b"")

    def return_to(self, step: int, lent: bytes = b"") -> str:
        """Put random numbers and data position of `step` back; return what is not exact, or "".

        `lent` is a donor's position, for a rank that has none of its own.

        Raises:
            RestoreError: what was recorded cannot be read or put back.
        """
        payload = self.position(step)
        missing = self._go_back(payload or lent)
        if self._seeds is not None:
            self._seeds.sow(self._own_rank(), step)
        if not payload:
            return not_known(step, self.parts, seeded=self._seeds is not None, lent=bool(lent))
        return f"the data position of {', '.join(missing)} was not recorded" if missing else ""

    # Inside.

    def _can_be_done_again(self) -> bool:
        ahead = not self._undo.ready and self._followers.ahead(self._buffers.covers)
        return not ahead and self._buffers.can_be_put_back()

    def _can_copy(self) -> bool:
        self._followers.stepping()
        can = self._can_be_done_again()
        self._buffers.stepping()
        return can

    def _go_back(self, payload: bytes) -> list[str]:
        """Put a position back; return the names of the parts that it did not have."""
        if not payload:
            self.parts.epochs.unpack(None)
            return []
        rng, data = unpack(payload)
        missing = self.parts.unpack_positions(data)
        self._rng.restore(rng)
        return missing

    def _tell_non_finite(self, step: int, value: str) -> None:
        if self.on_non_finite is not None:
            self.on_non_finite(step, value)

    def _own_rank(self) -> int:
        if self._rank is None:
            self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return self._rank

    def _begin_epochs(self) -> None:
        self._followers.save()
        if self.shows_steps:
            self._hooks.use(None)
            self._count, self.shows_steps = self._count_slowly, False

    def _count_slowly(self, _step: int) -> None:
        self._hooks.reset()
        self._record()

    def _record(self) -> None:
        rng = self._rng.capture()
        self._positions.write(Slot.COMMITTED, self.step, rng, self.parts.data_position(rng))

    def _record_tentative(self) -> None:
        rng = self._rng.capture()
        self._positions.write(Slot.TENTATIVE, self.step + 1, rng, self.parts.data_position(rng))
