"""Lightning's strategies with recovery in place: the same in all else.

Rules:

1. Without an agent, or with a Lightning that does not fit, a strategy is Lightning's own.
2. A new process of rank 0 counts as another rank for loggers and messages until it has joined.
"""

import functools
from typing import Any

import torch

from taskd.adaptors.trainers.library import fits
from taskd.adaptors.trainers.lightning.fit import LightningFit
from taskd.adaptors.trainers.lightning.library import Library
from taskd.adaptors.trainers.lightning.seams import table
from taskd.adaptors.training import tree
from taskd.adaptors.training.runtime import current

_SILENT_RANK = 1


def recovering(kind: Any, name: str, doc: str, library: Library) -> Any:
    """Return a strategy of Lightning's, `kind`, as one whose fits are recovered in place."""
    return type(name, (Recovering, kind), {"__doc__": doc, "__module__": "taskd.lightning", "taskd_library": library})


class Recovering:
    """The class before Lightning's own strategy: it reports events to the fit."""

    taskd_library: Library
    taskd_random = b""
    """The state of torch's generator when the training's loaders were made."""
    global_rank: int

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._taskd_fit: LightningFit | None = None
        runtime = current()
        self._taskd_runtime = runtime if runtime is not None and _fits(self.taskd_library) else None
        self._taskd_silent = runtime is not None and runtime.link.joins and runtime.rank == 0
        self._taskd_hush()

    def set_world_ranks(self) -> None:
        """Set the ranks, as Lightning's own does."""
        inner: Any = super()
        inner.set_world_ranks()
        self._taskd_hush()

    def setup(self, trainer: Any) -> None:
        """Set up, as Lightning's own does."""
        inner: Any = super()
        inner.setup(trainer)
        runtime = self._taskd_runtime
        if runtime is None or trainer.state.fn != "fit" or trainer.world_size == 1:
            return
        fit = self._taskd_fit = LightningFit(trainer, self.taskd_library, runtime)
        run_stage = trainer._run_stage

        def run_fit() -> Any:
            vars(trainer).pop("_run_stage", None)
            fit.begin()
            return run_stage()

        vars(trainer)["_run_stage"] = run_fit

    def process_dataloader(self, dataloader: Any) -> Any:
        """Process a loader, as Lightning's own does."""
        inner: Any = super()
        processed = inner.process_dataloader(dataloader)
        self.taskd_random = tree.bytes_of(torch.default_generator.get_state())
        return processed

    def training_step(self, *args: Any, **options: Any) -> Any:
        """Do a training step, as Lightning's own does."""
        inner: Any = super()
        fit = self._taskd_fit
        if fit is None:
            return inner.training_step(*args, **options)
        fit.training_step_begins()
        output = inner.training_step(*args, **options)
        fit.training_step_ended(output)
        return output

    def pre_backward(self, closure_loss: Any) -> None:
        """Do the work before a backward pass, as Lightning's own does."""
        inner: Any = super()
        if self._taskd_fit is not None:
            self._taskd_fit.backward_begins()
        inner.pre_backward(closure_loss)

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        """Save a checkpoint, as Lightning's own does."""
        inner: Any = super()
        if self._taskd_fit is not None:
            self._taskd_fit.saving(filepath)
        inner.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def teardown(self) -> None:
        """Tear down, as Lightning's own does."""
        inner: Any = super()
        fit, self._taskd_fit = self._taskd_fit, None
        if fit is not None:
            fit.end()
        inner.teardown()

    def taskd_speak(self) -> None:
        """Let this process log as rank 0 again: it has joined its world."""
        self._taskd_silent = False
        for zero_only in _zero_only(self.taskd_library):
            zero_only.rank = self.global_rank

    def _taskd_hush(self) -> None:
        if self._taskd_silent:
            for zero_only in _zero_only(self.taskd_library):
                zero_only.rank = _SILENT_RANK


@functools.cache
def _fits(library: Library) -> bool:
    return fits(library.package, table(library))


def _zero_only(library: Library) -> list[Any]:
    found = (library.module("utilities.rank_zero"), library.fabric("utilities.rank_zero"))
    return list({id(one): one for one in (module.rank_zero_only for module in found)}.values())
