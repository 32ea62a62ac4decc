"""One `train()` of a trainer: its epochs inside one resilient function.

Rules:

1. The trainer's own `_run_epoch` does each epoch. After a recovery it is called for the rest of one, with the number of
   finished batches. transformers does the same when it resumes from a checkpoint.
2. taskd chooses the step to go on from. A rank that was at that step's commit sends the trainer's state there to all. A
   rank that has the step from its peers does not have that state.
3. The work behind the commit is then done again, before the next step.
4. Everything that this puts into the trainer is taken out again when the epochs are over.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taskd.adaptors.groups.gathering import gather
from taskd.adaptors.trainers.hf.loader import HfLoader
from taskd.adaptors.trainers.hf.own import HfMoments, HfOwn
from taskd.adaptors.trainers.hf.taken import HfTaken, told
from taskd.adaptors.trainers.logged_lines import LoggedLines
from taskd.adaptors.training import tree
from taskd.adaptors.training.positions.rng import PackedRng
from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.script.behind import done_again
from taskd.adaptors.training.session import resilient
from taskd.adaptors.training.state import TrainState
from taskd.errors import RestoreError

RESUMED: Final = "taskd: from the memory of this job"
"""Given to transformers in place of a checkpoint's folder."""


def library() -> Any:
    """Return the module whose names `_run_epoch` calls."""
    return importlib.import_module("transformers.trainer")


class HfRun:
    """The epochs of one `train()`.

    Args:
        trainer: the one that trains.
        runtime: of this process.
        options: of `TrainState`.
        epoch, work: the trainer's own `_run_epoch` and `_maybe_log_save_evaluate`.
        given: the arguments of the call of `_run_epoch`.

    Attributes:
        inside: True while the epochs run.
        passes_over: True while transformers' own skipping of batches is left out.
    """

    def __init__(
        self,
        trainer: Any,
        runtime: Runtime,
        options: dict[str, Any],
        epoch: Callable[..., None],
        work: Callable[..., None],
        given: dict[str, Any],
    ) -> None:
        self.inside = self.passes_over = False
        self._trainer = trainer
        self._epoch_of_trainer, self._work_of_trainer = epoch, work
        self._given = given
        self._joins = runtime.link.joins
        self._lines = LoggedLines.of_rank(runtime.link)
        self._loader = HfLoader(given["train_dataloader"], PackedRng(), library().skip_first_batches)
        self._own = HfOwn(trainer)
        self._batches = given["steps_trained_in_current_epoch"] if given["resume_from_checkpoint"] else 0
        self._entered = False
        self._taken: list[HfTaken] = []
        self.state = self._make_state(options)

    def _make_state(self, options: dict[str, Any]) -> TrainState:
        trainer, scheduler = self._trainer, self._trainer.lr_scheduler
        follows = isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
        state = TrainState(
            **options,
            model=trainer.model_wrapped,
            optimizer=trainer.optimizer,
            scaler=getattr(trainer.accelerator, "scaler", None),
            scheduler=scheduler if follows else None,
            replicated={"trainer": _Shared(self)},
            data={"own": self._own, "moments": HfMoments(self._loader)},
        )
        recovery = state._recovery
        recovery.by_trainer = True
        recovery.begin_epochs()  # changes of a scheduler since the commit are put back
        self._own.record = recovery.record_ahead
        if not self._joins:
            state.step = trainer.state.global_step
            self._take(self._entry(), told(None, None))
        return state

    def _entry(self) -> dict[str, Any]:
        """Return the place where the first epoch starts, by the user's checkpoint."""
        names = ("epoch", "resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch", "start_time")
        given = {name: self._given[name] for name in names}
        return {"batches": self._batches, "skipped": self._batches, "committed": False, **given}

    # Functions that the trainer calls.

    def train(self) -> None:
        """Do all epochs."""
        trainer, handler = self._trainer, self._trainer.callback_handler
        accelerator, on_log, backward = trainer.accelerator, handler.on_log, trainer.accelerator.backward

        def new_line(args: Any, state: Any, control: Any, *more: Any, **named: Any) -> Any:
            if self._lines.takes():
                return on_log(args, state, control, *more, **named)
            control.should_log = False  # as a handler leaves it
            return control

        def noting(loss: Any, **named: Any) -> Any:
            self._own.backward(loss)
            return backward(loss, **named)

        def passing(loader: Any, num_batches: int = 0) -> Any:
            if loader is not self._loader:
                return skip(loader, num_batches)
            return loader if self.passes_over else loader.skip(num_batches)

        skip, library().skip_first_batches = library().skip_first_batches, passing
        handler.on_log, accelerator.backward, self.inside = new_line, noting, True
        try:
            resilient(self.state)(self._epochs)()
        finally:
            self.inside, library().skip_first_batches = False, skip
            self._loader.close()
            for patched, name in ((handler, "on_log"), (accelerator, "backward")):
                vars(patched).pop(name, None)

    def micro_batch(self, inputs: Any, operations: float, train: Callable[[], Any]) -> Any:
        """Train with one micro-batch."""
        self._own.begin(operations)
        loss = train()
        self._own.end(loss)
        self._batches += 1
        return loss

    def work(self, arguments: dict[str, Any]) -> None:
        """Do the work behind a step, which is committed first, or behind an epoch."""
        if self._trainer.state.global_step > self.state.step:
            arguments |= told(arguments["grad_norm"], arguments["learning_rate"])
            self._commit(arguments)
        else:
            known = self._taken[-1].told
            for name in ("grad_norm", "learning_rate"):
                arguments[name] = known[name] if arguments[name] is None else arguments[name]
        self._do(arguments)

    @property
    def start_time(self) -> float:
        """Time when the training started, in whichever process."""
        began: float = self._taken[-1].told["start_time"]
        return began

    # Steps.

    def _commit(self, arguments: dict[str, Any]) -> None:
        place = {"epoch": arguments["epoch"], "batches": self._batches, "committed": True}
        place["skipped"] = self._loader.skipped
        self._take({**place, "start_time": arguments["start_time"]}, arguments)
        self._loader.commit()
        self._lines.at(self._trainer.state.global_step)
        self.state.commit(self._own.known)

    def _take(self, place: dict[str, Any], arguments: dict[str, Any]) -> None:
        of_step = {name: arguments[name] for name in ("grad_norm", "learning_rate")}
        taken = HfTaken(self._trainer, self._trainer.state.global_step, {**place, **of_step})
        self._taken = [*self._taken[-1:], taken]

    def _do(self, arguments: dict[str, Any]) -> None:
        arguments["tr_loss"] = self._trainer._tr_loss
        self._work_of_trainer(**arguments)
        self._own.logged()

    # Epochs.

    @done_again
    def _epochs(self) -> None:
        trainer = self._trainer
        came_back, self._entered = self._entered or self._joins, True
        place = self._come_back() if came_back else self._taken[-1].told
        epoch = place["epoch"]
        if not came_back:
            self._loader.begin(epoch)
        self._one_epoch(epoch, place)
        while not trainer.control.should_training_stop and epoch + 1 < trainer.state.num_train_epochs:
            epoch += 1
            self._batches = 0
            self._loader.begin(epoch)
            begin = trainer.callback_handler.on_epoch_begin
            trainer.control = begin(trainer.args, trainer.state, trainer.control)
            self._one_epoch(epoch, None)

    def _one_epoch(self, epoch: int, place: dict[str, Any] | None) -> None:
        """Do all of an epoch, or the rest of it."""
        trainer, given = self._trainer, {**self._given, "epoch": epoch, "train_dataloader": self._loader}
        if place is None:
            self._epoch_of_trainer(**{**given, "resume_from_checkpoint": None})
        elif not place["committed"]:
            names = ("resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch")
            self._epoch_of_trainer(**{**given, **{name: place[name] for name in names}})
        else:
            done, control = place["batches"], trainer.control
            given |= {"resume_from_checkpoint": RESUMED, "epochs_trained": epoch}
            given["steps_trained_in_current_epoch"] = done
            if control.should_epoch_stop or control.should_training_stop:
                given["num_update_steps_per_epoch"] = done // trainer.args.gradient_accumulation_steps
            skips, trainer.args.ignore_data_skip = trainer.args.ignore_data_skip, False
            self.passes_over = True
            try:
                self._epoch_of_trainer(**given)
            finally:
                self.passes_over, trainer.args.ignore_data_skip = False, skips

    def _come_back(self) -> dict[str, Any]:
        """Go back to the trainer's state at the commit that all ranks are at, and do the work behind it."""
        trainer, step = self._trainer, self.state.step
        taken = self._agreed(step)
        taken.put_back(trainer)
        self._taken, place = [taken], taken.told
        self._batches = place["batches"]
        self._put_back_accelerate()
        self._loader.go_on(place["epoch"], place["batches"], place["skipped"])
        self._lines.at(step)
        trainer.model_wrapped.train()
        if place["committed"]:
            names = ("epoch", "start_time", "grad_norm", "learning_rate")
            same = {"trial": self._given["trial"], "ignore_keys_for_eval": self._given["ignore_keys_for_eval"]}
            self._do({"model": self._given["model"], **same, **{name: place[name] for name in names}})
        return place

    def _agreed(self, step: int) -> HfTaken:
        """Return the trainer's state at the commit of this step, from a rank that was there."""
        mine = next((taken for taken in self._taken if taken.step == step), None)
        written = b"" if mine is None else tree.pack(mine.written())
        sizes = [of_rank for (of_rank,) in gather([len(written)])]
        if all(sizes) and mine is not None:
            return mine
        if not any(sizes):
            raise RestoreError(f"no rank knows how the trainer stood after step {step}, expected one at least")
        root = next(rank for rank, size in enumerate(sizes) if size)
        message = torch.zeros(sizes[root], dtype=torch.uint8, device=torch.device(c10d._get_object_coll_device()))
        if dist.get_rank() == root:
            message.copy_(torch.frombuffer(bytearray(written), dtype=torch.uint8))
        dist.broadcast(message, root)
        return mine or HfTaken.given(tree.unpack(tree.bytes_of(message)))

    def _put_back_accelerate(self) -> None:
        """Reset accelerate's list of loaders in use, and close bars: an interrupted evaluation has left its own."""
        state = self._trainer.accelerator.gradient_state
        state.dataloader_references = [None]
        for callback in self._trainer.callback_handler.callbacks:
            bar = getattr(callback, "prediction_bar", None)  # an attribute of transformers' own progress bars
            if bar is not None:
                bar.close()
                callback.prediction_bar = None


class _Shared:
    """The trainer's state at its last commit: a replicated part of the training state."""

    def __init__(self, run: HfRun) -> None:
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        taken = self._run._taken
        return taken[-1].written() if taken else {}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        if values:
            self._run._taken = [HfTaken.given(values)]
