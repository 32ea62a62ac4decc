"""One fit of Lightning's trainer, recovered in place: its loop over epochs runs as a resilient function.

Rules:

1. A step of taskd's is one of the optimizers'. It is committed as soon as the training step returns in which they
   stepped. The rest of the batch (schedulers, hooks, log), an evaluation, a checkpoint and an epoch's end follow the
   commit. After a fault they are done again, from the picture that was taken there.
2. The work before the first epoch (sanity check, `on_train_start`) is set-up: a new process does it alone.
3. A new process of rank 0 is silent until it has joined: its loggers and messages behave as on other ranks.
4. A fit that this cannot recover is left to Lightning as it is, with one warning.
"""

import logging
from typing import Any

import torch

from taskd.adaptors.trainers.lightning.batches import Handed, kept
from taskd.adaptors.trainers.lightning.kept import Keeper, Picture
from taskd.adaptors.trainers.lightning.library import Library
from taskd.adaptors.trainers.lightning.loops import complete_step
from taskd.adaptors.trainers.lightning.parts import (
    Beginning,
    CommonPart,
    OwnPart,
    parts_of,
    self_kept,
    stands_till_commit,
    uses_batch,
)
from taskd.adaptors.trainers.lightning.resuming import finish_epoch, go_to, load_anew, release, show_progress, untoggle
from taskd.adaptors.trainers.lightning.writing import Files, Lines
from taskd.adaptors.trainers.marks import Marks
from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.script.behind import done_again
from taskd.adaptors.training.session import resilient
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError

_log = logging.getLogger(__name__)


class LightningFit:
    """A fit from the trainer's set-up to its end.

    Args:
        trainer: Lightning's, with its strategy set up.
        library: the Lightning package in use.
        runtime: of this process.
    """

    def __init__(self, trainer: Any, library: Library, runtime: Runtime) -> None:
        self._trainer = trainer
        self._library = library
        self._runtime = runtime
        self._loop = trainer.fit_loop
        self._epochs = self._loop.epoch_loop
        self._joins = runtime.link.joins
        self._keeps: Keeper | None = None
        self._pictures: dict[int, Picture] = {}
        self._entered = self._stands = False
        self._stepped = False
        self._common, self._own = CommonPart(self._tell_common), OwnPart(self._tell_own)
        self._beginning = Beginning(lambda: None if self._keeps is None else self._loop._data_fetcher)
        self._plain = {
            "run": self._loop.run,
            "setup_data": self._loop.setup_data,
            "automatic": self._epochs.automatic_optimization.run,
            "manual": self._epochs.manual_optimization.run,
        }
        self._handles: list[Any] = []

    # Functions that the strategy calls.

    def begin(self) -> None:
        """Put this fit's `run` and set-up of data in place of Lightning's."""
        vars(self._loop)["run"] = self.run
        vars(self._loop)["setup_data"] = self._set_up_data

    def end(self) -> None:
        """Leave everything as it was."""
        for owner, name in (
            (self._loop, "run"),
            (self._loop, "setup_data"),
            (self._epochs.automatic_optimization, "run"),
            (self._epochs.manual_optimization, "run"),
        ):
            vars(owner).pop(name, None)
        for handle in self._handles:
            handle.remove()
        if self._keeps is not None:
            self._keeps.lines.end()
            self._keeps.files.end()

    def training_step_begins(self) -> None:
        """Save buffers before a forward pass: no hook reports the pass of a model which nothing wraps."""
        module = self._trainer.lightning_module
        if self._keeps is not None and self._trainer.strategy.model is module:
            self._state._recovery.buffers.save(module)

    def training_step_ended(self, output: Any) -> None:
        """Record the end of a training step; its optimizers may not have stepped yet."""
        if self._keeps is not None:
            if self._needs_batch:
                self._keeps.output = self._as_hooks_get_it(output)
            self._state._recovery.record_ahead()

    def backward_begins(self) -> None:
        """Record that ranks are about to meet."""
        if self._keeps is not None and not self._trainer.lightning_module.automatic_optimization:
            self._state._recovery.undo.met()
            self._state._recovery.record_ahead()

    def saving(self, path: Any) -> None:
        """Record that a checkpoint is about to be written."""
        if self._keeps is not None:
            self._keeps.files.begin(path)

    # Functions in place of Lightning's.

    def run(self) -> None:
        """Run the fit loop, as Lightning's `run` does."""
        state = self._state_of_fit()
        if state is None:
            self._plain["run"]()
            return
        self._state = state
        loop = self._loop
        loop.setup_data()
        if loop.skip:
            return
        loop.reset()
        loop.on_run_start()
        self._keep()
        resilient(state)(self._train)()

    def _set_up_data(self) -> None:
        loop = self._loop
        former = loop._data_fetcher
        self._plain["setup_data"]()
        fetcher = loop._data_fetcher
        if fetcher is not None and fetcher is not former:
            kind: Any = type(fetcher)
            fetcher.__class__ = kept(kind)
            fetcher.taskd = Handed()
            fetcher.taskd.begin(fetcher.combined_loader.flattened)
            fetcher.taskd.start = self._trainer.strategy.taskd_random

    def _automatic(self, optimizer: Any, batch_idx: int, kwargs: Any) -> Any:
        assert self._keeps is not None
        self._keeps.batch, self._keeps.batch_idx = kwargs.get("batch") if self._needs_batch else None, batch_idx
        output = self._plain["automatic"](optimizer, batch_idx, kwargs)
        if not self._loop._should_accumulate():
            self._commit(output)
        return output

    def _manual(self, kwargs: Any) -> Any:
        assert self._keeps is not None
        self._keeps.batch = kwargs.get("batch") if self._needs_batch else None
        self._keeps.batch_idx = self._epochs.batch_idx
        output = self._plain["manual"](kwargs)
        if self._stepped:
            self._commit(output)
        return output

    # Internals.

    def _state_of_fit(self) -> TrainState | None:
        try:
            parts = parts_of(self._trainer, self._library)
            state = TrainState(
                **parts, replicated={"lightning": self._common}, data={"of_rank": self._own, "pass": self._beginning}
            )
        except ConfigError as error:
            _log.warning("%s. This fit is not recovered in place: at a fault all processes start anew", error)
            return None
        recovery = state._recovery
        recovery.by_trainer = True
        recovery.parts.plain.leave_out(self_kept(self._trainer, self._library))
        recovery.begin_epochs()  # schedulers that move behind a commit are put back with the rest
        module = self._trainer.lightning_module
        if not module.automatic_optimization and len(self._trainer.optimizers) > 1:
            recovery.undo.expose()
        if module.automatic_optimization:
            state.step = self._trainer.global_step
        return state

    def _keep(self) -> None:
        """Start keeping the trainer's values: the set-up has ended."""
        trainer = self._trainer
        marks = Marks(self._runtime.link.config.marks, anew=not self._joins)
        self._needs_batch = uses_batch(trainer, self._library)
        self._stands = stands_till_commit(trainer, self._library)
        self._keeps = Keeper(trainer, self._library, Lines(trainer.loggers, marks), Files(trainer.callbacks, marks))
        self._pictures = {self._state.step: self._keeps.take(committed=False)}
        self._evaluates_anew = self._epochs.val_loop._combined_loader is None
        vars(self._epochs.automatic_optimization)["run"] = self._automatic
        vars(self._epochs.manual_optimization)["run"] = self._manual
        if not trainer.lightning_module.automatic_optimization:
            self._handles = [one.register_step_post_hook(self._saw_step) for one in trainer.strategy.optimizers]

    def _saw_step(self, *_: Any) -> None:
        self._stepped = True

    def _commit(self, output: Any) -> None:
        state, keeps = self._state, self._keeps
        assert keeps is not None
        keeps.output = output if self._needs_batch else None
        self._stepped = False
        step = state.step
        self._pictures = {step: self._pictures[step], step + 1: keeps.take(committed=True)}
        loss = output.get("loss") if isinstance(output, dict) else None
        state.commit(loss if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None)

    def _tell_common(self) -> dict[str, Any] | None:
        picture = self._pictures.get(self._state.step) if self._pictures else None
        return None if picture is None or self._keeps is None else self._keeps.common(picture)

    def _tell_own(self) -> bytes:
        keeps, recovery = self._keeps, self._state._recovery
        if keeps is None:
            return b""
        step, commits = recovery.step, recovery.committing and recovery.step in self._pictures
        if recovery.committing and not commits:
            self._complete()
            self._pictures = {step: keeps.take(committed=True)}
        return keeps.own(stands=commits and self._stands)

    def _complete(self) -> None:
        """Complete a counted step whose optimizers have stepped, and whose end this process has not reached."""
        complete_step(self._epochs)
        self._stepped = False

    def _as_hooks_get_it(self, output: Any) -> Any:
        if self._trainer.lightning_module.automatic_optimization:
            kind = self._epochs.automatic_optimization.output_result_cls
            result = kind.from_training_step_output(output, self._trainer.accumulate_grad_batches)
            return {} if result.loss is None else result.asdict()
        return self._epochs.manual_optimization.output_result_cls.from_training_step_output(output).asdict()

    # The training function.

    @done_again
    def _train(self) -> None:
        """Run Lightning's loop over epochs, from the step of the state."""
        try:
            self._run_epochs()
        except BaseException:
            untoggle(self._trainer.lightning_module)
            raise

    def _run_epochs(self) -> None:
        loop, profiler, keeps = self._loop, self._trainer.profiler, self._keeps
        assert keeps is not None
        resumes = self._put_back()
        while resumes or not loop.done:
            try:
                if resumes:
                    resumes = False
                    with profiler.profile("run_training_epoch"):
                        finish_epoch(self._trainer, self._library, keeps)
                else:
                    loop.on_advance_start()
                    loop.advance()
                loop.on_advance_end()
            except StopIteration:  # noqa: PERF203 - as Lightning's loops do
                break
            finally:
                loop.on_iteration_done()
        loop._restarting = False
        loop.on_run_end()

    def _put_back(self) -> bool:
        """Set the trainer back to the state's step; return whether that is a commit."""
        keeps, trainer = self._keeps, self._trainer
        assert keeps is not None
        if not self._entered and not self._joins:
            self._entered = True
            return False
        states = self._loop._data_fetcher.taskd.random.capture()
        release(trainer)
        picture = None if self._joins else self._pictures.get(self._state.step)
        if picture is not None:
            keeps.put(picture)
            load_anew(trainer, evaluates_anew=self._evaluates_anew, joined=False)
        elif self._common.loaded is not None:
            if self._joins:
                trainer.strategy.taskd_speak()
            keeps.put_common(self._common.loaded)
            place = [*keeps.put_own(self._own.loaded), *self._beginning.loaded] if self._own.loaded else None
            load_anew(trainer, evaluates_anew=self._evaluates_anew, joined=True)
            go_to(trainer, self._library, keeps, place, wants_batch=self._needs_batch)
            if self._joins and keeps.committed:
                show_progress(trainer, self._library)
        self._loop._data_fetcher.taskd.random.restore(states)
        step = self._state.step
        self._pictures = {step: picture or keeps.take(committed=keeps.committed)}
        self._common.loaded, self._own.loaded = None, b""
        self._entered, self._joins, self._stepped = True, False, False
        return self._pictures[step].committed
