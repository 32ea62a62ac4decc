"""`resilient`: keeps one training function going through faults, inside a process that stays alive.

Rules:

1. Under an agent, the function is called again after each recovery, with the state already restored. Without one (plain
   torchrun, or a single process) it is simply called.
2. An exception of the function is a fault of the job in three cases: the agent has requested a pause, it is a
   `RuntimeError`, or it is known to be transient (`register_fault`). torch raises only `RuntimeError` when a peer is
   gone. Any other exception is the script's own and propagates. So does every exception that is known to be fatal.
3. An exception is released, with its frames, before a new world is formed, as it holds the activations of a whole step.
4. The process keeps its rank in the job (its slot). Its rank in a world is its place among that world's members.
"""

import functools
import logging
import os
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch.distributed as dist

from taskd.adaptors.faults import in_one_line, kind_of, last_words
from taskd.adaptors.groups.members import Members
from taskd.adaptors.groups.wrappers import inside
from taskd.adaptors.seams.parts import IN_WORKER
from taskd.adaptors.training import failures
from taskd.adaptors.training.checkpoints.checkpoint import dump_as_ordered
from taskd.adaptors.training.copies.backups import Backups
from taskd.adaptors.training.data.strays import Strays
from taskd.adaptors.training.proof.first_steps import first_steps_of, mended, read_beforehand
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.restore import restore
from taskd.adaptors.training.runtime import Runtime, current
from taskd.adaptors.training.script.behind import BehindCommit
from taskd.adaptors.training.script.nested import only_one
from taskd.adaptors.training.script.outside import tell_outside
from taskd.adaptors.training.state import TrainState
from taskd.adaptors.training.tripwire import Interrupted
from taskd.core.diagnosis.faults import FaultKind
from taskd.errors import CheckpointError, RecoveryError, RefusedError, RestoreError
from taskd.runtime.box.recorder import BoxPhase
from taskd.runtime.worker import stacks, worker
from taskd.wire.kinds import WorldRank
from taskd.wire.messages import Condition, WorldPlan

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


def resilient(state: TrainState) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the decorated training function going through faults of this and other ranks.

    The function is called again after each recovery and must continue at `state.step`. All ranks call it. It returns on
    all ranks together, after the last one has finished. Every collective of a step, and every use of its results,
    belongs inside. It works without an agent too, but then nothing is recovered.

    Raises:
        ConfigError: another resilient function runs.
        Exception: any exception of the function that is no fault of the job, or that nobody recovers.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            runtime, recovery = current(), state._recovery
            with only_one(function, of_process=runtime is not None):
                if runtime is None:
                    recovery.begin()
                    return function(*args, **kwargs)
                recovery.parts.taken.enter(function)
                tell_outside(function, recovery.parts.all, tells=runtime.rank == 0 and not runtime.link.joins)
                read_beforehand(function, (args, kwargs), state, runtime)
                session = Session(runtime, recovery, _name_of(function))
                return session.run(mended(lambda: function(*args, **kwargs), function, (args, kwargs), state, runtime))

        return run

    return decorate


def _name_of(function: Callable[..., object]) -> object:
    """Identify a function, whose code object may be replaced (`data/counts.py`)."""
    code = getattr(function, "__code__", None)
    return function if code is None else (code.co_filename, code.co_firstlineno, code.co_name)


class Session:
    """One resilient function of this process, over all generations. `name` distinguishes it from others."""

    def __init__(self, runtime: Runtime, recovery: StateRecovery, name: object) -> None:
        again = runtime.link.inside and runtime.function == name  # the script has caught the exception that left it
        runtime.world.section += not again
        self._runtime, runtime.function = runtime, name
        self._link = runtime.link
        self.recovery = recovery
        self._strays, self._behind = Strays(), BehindCommit()
        self.backups = Backups(
            recovery, self._link, runtime.refusals, runtime.world.section, runtime.forbid_collectives
        )
        self._first_steps = first_steps_of(runtime, recovery, self.watch_commit)
        self.inside = False
        """True while the main thread is inside the function, and false between two calls of it."""
        self._entered = False
        """True if the function was called since the newest order."""

    def run(self, function: Callable[[], R]) -> R:
        """Call the function until every rank has returned from it together."""
        stacks.trains_here()
        self._open()
        self._runtime.session = self
        if not IN_WORKER.misfit():
            self.recovery.parts.iterators.watch(passes=not self.recovery.by_trainer)
        if self._runtime.rank == 0 and not self.recovery.by_trainer:
            self._strays.watch()
        try:
            return self._go_on(self._first_steps.around(function))
        finally:
            self._first_steps.close()
            self._strays.stop()
            self.recovery.parts.iterators.stop()
            self.backups.close()
            self.recovery.late.end()
            self._runtime.verified.end()
            self._runtime.session = self.recovery.on_commit = self.recovery.losses.tell = None
            self.recovery.verify = self.recovery.undo.verify = None

    def _open(self) -> None:
        recovery, link = self.recovery, self._link
        if link.config.position is not None:
            try:
                recovery.attach(os.fspath(link.config.position))
            except RestoreError as error:
                logger.warning("rank %d: positions do not outlive this process: %s", self._runtime.rank, error)
        if link.joins:
            recovery.declare_empty()
        else:
            recovery.begin(self._runtime.rank)
            self._enter_smaller_world()
            if not link.inside:  # else the same training continues
                self.backups.forget()
        recovery.late.begin()
        recovery.losses.tell, recovery.on_saved, recovery.saved = link.saw_non_finite, link.tell_again, None
        recovery.parts.meter.recorder = self._runtime.recorder
        self._runtime.end_setup(recovery, self.backups)
        world = self._runtime.world
        name = f"{world.generation}/{world.section}"
        world.rows = recovery.open(self._runtime.rank, link.config.replicas, name, joins=link.joins)
        link.holding = self.backups.held
        link.enter(recovery.step, recovery.condition())

    def _enter_smaller_world(self) -> None:
        """Enter a smaller world if the job starts, or starts anew, with fewer nodes than it is made for."""
        replicas, runtime = self._link.config.replicas, self._runtime
        if replicas and dist.is_initialized() and dist.get_world_size() < replicas:
            self.recovery.enter_world(runtime.rank, WorldRank(dist.get_rank()), dist.get_world_size(), replicas)

    def _go_on(self, function: Callable[[], R]) -> R:
        plan = None if self._link.inside else self._link.await_order()
        while True:
            result, error = self._attempt(function, plan)
            try:
                plan = self._link.await_order()
            except worker.AbandonedError as abandoned:
                if error is None:
                    return result[0]
                logger.error("rank %d is not recovered: %s", self._runtime.rank, abandoned)
                raise error from None
            if plan is None:
                if error is not None:
                    raise error
                return result[0]
            if error is not None:
                traceback.clear_frames(error.__traceback__)
                error = None

    def _attempt(self, function: Callable[[], R], plan: WorldPlan | None) -> tuple[list[R], BaseException | None]:
        """Join the plan's world, if there is one, and call the function once.

        Return its result in a list, or an empty list and the exception that left it.
        """
        recovery, self._entered = self.recovery, False
        try:
            if plan is not None:
                self._join(plan)
                if plan.dump:
                    return [], self._dump(plan)
            result = [self._call(function, plan)]
        except SystemExit as error:
            self._runtime.recorder.last_words(error)  # a script takes time to end, which the others need not wait for
            self._link.last_words(f"sys.exit({error.code}) in the training function", "")
            raise
        except (Exception, Interrupted) as error:
            if not isinstance(error, Interrupted):
                self._runtime.recorder.last_words(error)
            if not self._is_fault(error):
                self._link.last_words(*last_words(error))
                raise
            self._runtime.recorder.phase(BoxPhase.PAUSED)
            self._runtime.world.abandon()
            if isinstance(error, RefusedError):
                self._runtime.refuse_rebuild(str(error))
            elif plan is not None and self._link.first_step and not self._link.interrupted and failures.is_own(error):
                self._runtime.refusals.first_step(f"the first step of the new world has failed: {in_one_line(error)}")
            condition = recovery.condition(error)
            if self._entered:  # a failed join keeps the record of the interruption before it
                self._first_steps.interrupted(error)
                between = condition is Condition.CLEAN and recovery.between_steps
                self._behind.note(error, recovery.step, between=between, rest=recovery.left_out)
                self.backups.behind = self._behind.left
            self._link.raised(recovery.step, condition, "" if isinstance(error, Interrupted) else in_one_line(error))
            return [], error
        self._runtime.recorder.phase(BoxPhase.FINISHED)
        self.backups.behind = -1
        self._link.returned(recovery.step, recovery.condition())
        return result, None

    def _call(self, function: Callable[[], R], plan: WorldPlan | None) -> R:
        self._runtime.recorder.phase(BoxPhase.TRAINING)
        self.watch_commit()
        self.backups.start(self._runtime.world, -1 if plan is None else plan.copied, first=plan is None)
        if (verified := self._runtime.verified).begin():
            self.recovery.verify, self.recovery.undo.verify = verified.look_again, verified.look
        self._first_steps.enter(after_fault=plan is not None)
        self.inside = self._entered = True
        self.recovery.parts.iterators.enter()
        try:
            with inside(), self.recovery.replicas.verifying(self.recovery.step, self._link.tell_again):
                if plan is not None:
                    self.recovery.do_again()
                    self.recovery.enter_again()
                return function()
        finally:
            self.inside = False
            self.recovery.parts.iterators.leave()
            self.backups.stop()
            self._behind.tell_due()

    def _join(self, plan: WorldPlan) -> None:
        recovery, runtime = self.recovery, self._runtime
        self._first_steps.cancel()
        rank = Members.of(plan).rank_of(runtime.rank)
        replicas = plan.replicas or plan.world_size
        runtime.refusals.first_step("")
        runtime.recorder.phase(BoxPhase.REBUILDING)
        known = runtime.form(plan, recovery, self._behind.known(plan))
        self._link.joined(recovery.step, recovery.condition())
        runtime.recorder.phase(BoxPhase.RESTORING)
        recovery.enter_world(runtime.rank, rank, plan.world_size, replicas, Members.of(plan).slots)
        report = restore(recovery, plan, rank, self.backups.folder)
        if report.note:
            logger.warning("rank %d, step %d: %s", runtime.rank, recovery.step, report.note)
        if rank == 0 and not plan.dump:
            recovery.shares.tell_smaller(plan.world_size, replicas)
        self._behind.tell_later(known, plan, rank)
        runtime.recorder.step(recovery.step)
        self._link.restored(recovery.step)

    def _dump(self, plan: WorldPlan) -> RecoveryError:
        """Write the checkpoint that the job ends with; return the error that then leaves the resilient function.

        Raises:
            CheckpointError: it could not be written.
        """
        step, path = self.recovery.step, dump_as_ordered(self.recovery, plan, self._link.config)
        self._link.dumped(step)
        if self._link.interrupted:  # a peer was lost meanwhile
            raise Interrupted
        return RecoveryError(f"{plan.dump}; step {step} was written to {path}, where taskd.load_latest finds it")

    def _is_fault(self, error: BaseException) -> bool:
        if isinstance(error, Interrupted | RecoveryError | CheckpointError):
            return True
        kind = kind_of(error)
        if kind in (FaultKind.FATAL, FaultKind.PROCESS, FaultKind.NODE):
            return False  # this process ends; the manager gets the reason, and replaces it or stops the job
        return self._link.interrupted or kind is FaultKind.RETRY or isinstance(error, RuntimeError)

    def watch_commit(self) -> None:
        """Observe the next commit: the first of a world, or the last before a pause. Others need no attention.

        The control thread calls this too.
        """
        self.recovery.on_commit = self._committed

    def _committed(self, step: int) -> None:
        self._strays.report()
        self._behind.committed(step)
        owes = self._first_steps.committed() or self._behind.owes
        self.recovery.replicas.committed()
        self.backups.committed()
        if self.recovery.shows_steps and not owes:
            self.recovery.on_commit = None  # before the link is asked, as an order that comes now sets it again
        elif not self.recovery.shows_steps:
            self._runtime.recorder.step(step)
        if self._link.committed(step):
            raise Interrupted
