"""Recovery of one rank's training state: its condition at a fault, and its return to a committed step.

Rules:

1. `commit` counts the step and records this rank's random numbers and data position (see `committed_steps`). It copies
   no weights.
2. Between two commits the optimizers' hooks show the condition of the state in memory. It is CLEAN while no optimizer
   has changed anything, or if the changes can be undone (see `undo`). It is STEPPED when each has stepped exactly
   once. It is TORN in all other cases, such as a commit that was left half-way.
3. A forward pass may change buffers (BatchNorm) although the weights are still clean: `rollback` restores them.
4. At a fault, these methods are called on the thread that trains, outside of the training function.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from taskd.adaptors.groups.rows import MeshRows
from taskd.adaptors.training.committed_steps import CommittedSteps, leaver, step_counter
from taskd.adaptors.training.data.shares import Shares
from taskd.adaptors.training.failures import Failures
from taskd.adaptors.training.hooks import StepHooks
from taskd.adaptors.training.inflight.in_flight import InFlight
from taskd.adaptors.training.keeping import SavedCheckpoint
from taskd.adaptors.training.parts.buffers import Buffers
from taskd.adaptors.training.parts.followers import Followers
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.pending import Pending
from taskd.adaptors.training.positions.payload import pack, unpack
from taskd.adaptors.training.positions.position_file import PositionFile
from taskd.adaptors.training.positions.positions import not_known
from taskd.adaptors.training.positions.seeds import Seeds
from taskd.adaptors.training.script.afterwards import Afterwards
from taskd.adaptors.training.script.rest import Rest
from taskd.adaptors.training.sharding.lent_layouts import LentLayouts
from taskd.adaptors.training.sharding.replicas import Replicas
from taskd.adaptors.training.sharding.shards import rows_of
from taskd.adaptors.training.trust.finite import Losses
from taskd.adaptors.training.trust.first_step import FirstStep
from taskd.adaptors.training.undo import Undo
from taskd.runtime.worker.pulse import Extra, pulse_of
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Condition


class StateRecovery(CommittedSteps):
    """The recovery methods of one `TrainState`.

    Args:
        parts: parts of the state.
        seeds: seeds of its random numbers, if it was given a seed.
        commit: the state's own method, by which commits are found in a script's text.
        backup_every: steps from one copy of the state to the next, if the script specifies them; 0: no copies.

    Attributes:
        losses: losses given to `commit`.
        committing: whether `commit` is counting a step now.
        shares: shares of the global batch.
        afterwards: work after certain commits.
        failures: failed collectives, whose errors the script may swallow.
        parameters_moved: returns whether anything but an optimizer has changed parameters since the commit.
        lent_layouts: bucket layouts that travel with the state.
        in_flight: values of the present step that wrappers hold.
        steps: hooks that count the optimizers' steps since the commit.
        replicas: replica set of this rank.
        saved: newest checkpoint of the present training function.
        inexact: description of all that the newest recovery could not restore exactly.
        interruptions: number of interrupted steps that were dropped.
        on_saved: called when there is a new checkpoint.
        withdraw_step: rejects an optimizer's step that has begun, before it has changed anything.
    """

    def __init__(
        self,
        parts: Parts,
        seeds: Seeds | None,
        commit: Callable[..., None],
        backup_every: int | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        super().__init__(parts, seeds, self.commit)
        self.backup_every = backup_every
        self.saved: SavedCheckpoint | None = None
        self.lent_layouts = LentLayouts()
        self.inexact = ""
        self.on_saved: Callable[[], None] = lambda: None
        self.shares = Shares(seeds)
        self.interruptions = 0
        self.committing = self._restoring = self._adopting = False
        self._commit_of_script = commit
        parts.count_steps(step_counter(self))
        self.losses = Losses()
        self._empty = False
        self.parameters_moved: Callable[[], bool] = lambda: False
        self._followers = Followers(parts.replicated, parts.taken)
        self.buffers = Buffers(parts.modules, parts.optimizers, parts.plain)
        counts = self._board.counts
        self.steps = StepHooks(parts, counts, self._save, lambda: None if self.by_trainer else self._look_ahead())
        self.afterwards = Afterwards(parts.modules, self.steps.evaluations)
        parts.epochs.loop_ended.append(self._followers.hold)
        self.withdraw_step = self.steps.withdraw
        self.first_step = FirstStep(parts.optimizers, self.withdraw_step)
        self._pending, self.in_flight = Pending(parts), InFlight(parts)
        self.replicas = replicas or Replicas(parts)
        self.undo = Undo(parts, counts, self._can_copy)
        self.steps.withdrawn = self.undo.end
        self.failures = Failures(lambda: sum(counts), lambda any_: self._board.demand(Extra.FAILURE, wanted=any_))

    def commit(self, loss: float | torch.Tensor | None = None) -> None:
        """Count the step as done, with all extra work; see `TrainState.commit`.

        Raises:
            DistrustError: it is the first step with a restored state, and its loss is not finite.
        """
        if self._verify is not None:
            self._verify()
        if self.first_step.watched:
            self._end_first_step(loss)
        self._board.demand(Extra.STATE)
        self.committing = True
        self._board.step = step = self._board.step + 1
        if self._pending.armed or not self.steps.counts[1]:
            self._pending.committed(step, stepped=any(self.steps.stepped))
        self.buffers.committed()
        if self.failures.any:
            self.failures.commit()
        if self._seeds is not None:
            self._seeds.sow(self._own_rank(), step)
        self._count(step)
        self._board.commits += 1
        if self._followers.any:
            self._followers.mark()
        if self.undo.busy:
            self.undo.forget()
        if self.in_flight.any:
            self.in_flight.mark()
        self.committing = False
        self.late.committed(step)
        self._put_down(step)
        if loss is not None:
            self.losses.look(loss, step)
        self._board.demand(Extra.STATE, wanted=self._has_more_to_do())
        if self._on_commit is not None:
            self._on_commit(step)
        if self.afterwards.any and not self._adopting:
            self.afterwards.run(step)

    def _has_more_to_do(self) -> bool:
        """Return whether the next commit has more to do than to count, as far as is known now.

        Code that finds out later demands it. The C core itself checks whether the first optimizer has stepped, and
        whether a collective has failed.
        """
        return bool(
            self._verify is not None
            or self._seeds is not None
            or self.replicas.verifier is not None
            or self.afterwards.any
            or self._followers.any
            or self.in_flight.any
            or self.first_step.watched
            or self._pending.armed
            or self.buffers.touched
            or self.undo.busy
            or self.late.owes
        )

    def after_commit(self, work: Callable[[int], object], every: int) -> None:
        """Register work after commits; see `TrainState.after_commit`."""
        self.afterwards.add(work, every)
        self._board.demand(Extra.STATE)

    def do_again(self) -> None:
        """Repeat the work after the newest commit. Called after a recovery, before the training continues."""
        self.afterwards.run(self.step)

    def attach(self, path: str) -> None:
        """Keep positions in the file at `path` from now on. `return_to` finds what a dead process has left there.

        Raises:
            RestoreError: the file cannot be used.
        """
        self.steps.take_over()
        self._positions = file = PositionFile(path)
        os.register_at_fork(after_in_child=leaver(self))
        slowly = self._record, self._look_ahead
        self._pulse = pulse = pulse_of(self._board, file.target, self._rng.sources(), self.commit, slowly)
        if pulse is not None:
            self.steps.use(pulse, records=not self.by_trainer)
            self.undo.stand_last()
            self._count, self._ahead, self.shows_steps = pulse.commit, pulse.after_forward, True
            if self.commits_quickly:
                self.commit_step = pulse.commit_quickly
            self._pack_in_pulse()

    def begin(self, rank: JobRank | None = None) -> None:
        """Record this rank's position before its first step. Called as training begins, but not in a newcomer.

        `rank` is the rank in the job; by default, the rank of `torch.distributed`.
        """
        self._rank = rank
        if rank is None:  # then nobody calls `open`
            found = rows_of(self.parts, 0)
            self.shares.lie_on(None if isinstance(found, str) else found)
        self._board.demand(Extra.STATE)
        self.in_flight = InFlight(self.parts)
        self.in_flight.begun_at = self.step
        self.buffers.begin()
        self._followers.settle()
        if self._seeds is not None:
            self._seeds.sow(self._own_rank(), self.step)
        self._record()

    def open(self, slot: JobRank, replicas: int, world: str, *, joins: bool) -> MeshRows | None:
        """Determine this rank's part of the state as the training function is entered; return the rows of a mesh.

        `slot` is the rank in the job, of `replicas` ranks (0: as many as have started). `world` as in `Replicas`.
        """
        self.replicas.begin(empty=joins, world=world, slot=slot, size=replicas)
        self.shares.lie_on(self.replicas.rows)
        return self.replicas.rows

    def enter_world(
        self, slot: JobRank, rank: WorldRank, world_size: int, replicas: int, members: Sequence[JobRank] = ()
    ) -> None:
        """Make the job's rank `slot` rank `rank` of the world of these members. The full world has `replicas` ranks."""
        self._rank = slot
        self.shares.enter(rank, world_size, replicas, self.parts, members)

    def declare_empty(self) -> None:
        """Declare this process a newcomer, whose weights count for nothing."""
        self._empty = True
        self._board.demand(Extra.STATE)
        self.in_flight = InFlight(self.parts)
        self.buffers.begin()
        rng = self._rng.capture()
        self._start = {self.step: pack(rng, self.parts.data_position(rng))}

    @property
    def in_optimizer(self) -> bool:
        """True if an optimizer is inside its step, or was left there by an exception. Any thread may read it."""
        return self.steps.inside

    @property
    def between_steps(self) -> bool:
        """True if a step is committed and no training forward pass has ended since."""
        return self.step > 0 and self.step + 1 not in self._positions.read()

    def condition(self, error: BaseException | None = None) -> Condition:
        """Return the condition of the state in memory. `error` is the exception that has just left the training."""
        if self._empty:
            return Condition.EMPTY
        if self._restoring or self.committing or self.failures.committed:
            return Condition.TORN
        if self.undo.ready or self.steps.untouched(self.undo.untouched):
            moved = not self.undo.ready and self.parameters_moved()
            return Condition.CLEAN if not moved and self._can_be_done_again() else Condition.TORN
        if self.failures.stepped or self.steps.torn or not all(self.steps.stepped):
            return Condition.TORN
        if error is not None and not self.by_trainer:
            self._followers.rest = Rest(error, self._commit_of_script)
        lags = self._followers.lag(self.step + 1, known=self.commits > 0)
        lags = lags or self.late.lags(self.step + 1, self._followers.rest)
        return Condition.TORN if lags else Condition.STEPPED

    @property
    def left_out(self) -> str:
        """`file:line` of the first work that the step of a STEPPED state has not reached; "" for none."""
        return self._followers.rest.line

    def adopt(self) -> None:
        """Count a STEPPED state as committed, after schedulers and averages that lag have followed the optimizers."""
        self.failures.forget()
        worked_at = self.position(self.step + 1)
        if worked_at and (data := unpack(worked_at)[1]):  # the loop's iterator has gone with the loop
            self.parts.unpack_positions(data | self.late.present(self.step + 1))
        self._followers.complete()
        on_commit, self.on_commit, self._adopting = self.on_commit, None, True
        self.commit()
        self.on_commit, self._adopting = on_commit, False

    def rollback(self) -> str:
        """Undo all since the commit: a CLEAN state is then the committed one. Return a note on what is left, or ""."""
        self._board.demand(Extra.STATE)
        if self.undo.ready:
            self.undo.apply()
            self._followers.settle()
        self.failures.forget()
        self.buffers.put_back()
        note = self._followers.rollback()
        self._followers.refresh()
        self._board.reset()
        return note

    @contextmanager
    def restoring(self, step: int) -> Iterator[None]:
        """Mark the state as TORN while the body fills it, and as committed step `step` when the body succeeds."""
        self._restoring = True
        self._board.demand(Extra.STATE)
        yield
        self._board.step = step
        self._board.reset()
        for held in (self.undo, self.failures, self.losses, self.first_step):
            held.forget()
        self.buffers.touched = False
        self._board.commits = 0
        self._followers.settle()
        self._empty = self._restoring = self.committing = False

    def why_not_again(self) -> str:
        """Return why the present step, whose first optimizer is about to step, cannot be done again; "" if it can."""
        changed = any(self.steps.stepped) or self._empty or self._restoring or self.failures.stepped
        return "the step has changed what cannot be put back" if changed or not self._can_be_done_again() else ""

    def redo(self) -> None:
        """Restore the last commit, as a recovery does in a process that it keeps. Raises `RestoreError`."""
        self.in_flight.drop_step(self.step)
        self.rollback()
        self.in_flight.complete()
        self.drop_step(on_purpose=True)
        self.return_to(self.step)

    def drop_step(self, *, on_purpose: bool = False) -> None:
        """Drop an interrupted step: no gradient is left, and no evaluation continues."""
        self.interruptions += not on_purpose
        for parameter in self.parts.parameters():
            parameter.grad = None
        self._pending.forget()
        self.steps.train_on()

    def return_to(self, step: int, lent: bytes = b"", *, own: bool = False) -> str:
        """Restore the random numbers and data position of `step`; return a note on what is not exact, or "".

        `lent` is a donor's position, for a rank without a record, or with `own` this rank's own from a copy.

        Raises:
            RestoreError: the record cannot be read or restored.
        """
        payload = self.position(step)
        missing = self._go_back(payload or lent)
        if self._seeds is not None:
            self._seeds.sow(self._own_rank(), step)
        if not payload and not (own and lent):
            return not_known(step, self.parts, seeded=self._seeds is not None, lent=bool(lent))
        return f"the data position of {', '.join(missing)} was not recorded" if missing else ""

    # Inside.

    def _can_be_done_again(self) -> bool:
        ahead = not self.undo.ready and self._followers.ahead(self.buffers.covers)
        return not ahead and self.buffers.can_be_put_back()

    def _save(self, module: torch.nn.Module) -> bool:
        """Save buffers before a forward pass; return whether to call this again."""
        goes_on = self.buffers.save(module)
        if self.buffers.touched:
            self._board.demand(Extra.STATE)
        return goes_on

    def _can_copy(self) -> bool:
        self._followers.stepping()
        can = self._can_be_done_again()
        self.buffers.stepping()
        return can

    def watch_first_step(self, source: str = "", distrust: Callable[[], None] = lambda: None) -> None:
        """Arm the first-step check after a restore of some ranks from replicas or copies.

        `source`: where this rank's state came from, "" if it kept its own. If the next step is not finite, `distrust`
        is called, and a restored state is TORN.
        """

        def refuse() -> None:
            self._restoring = bool(source)
            distrust()

        if self.losses.known_finite:
            self.first_step.watch(source, refuse)
            self._board.demand(Extra.STATE)

    def _end_first_step(self, loss: float | torch.Tensor | None) -> None:
        if loss is not None and not self._adopting:
            self.first_step.judge(loss)
        self.first_step.forget()

    def _put_down(self, step: int) -> None:
        """Start the copy and the digest of this step's state if they are due."""
        if self.backups is not None and step >= self.backups.next:
            self.backups.due(step)
        if step >= self.replicas.due_at:
            self.replicas.due(step)

    def begin_epochs(self) -> None:
        """Record the epochs from now on, because the script has requested them for the first time."""
        self._followers.save()
        self._pack_in_pulse()
