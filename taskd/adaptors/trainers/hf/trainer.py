"""A trainer whose epochs are recovered in place: a class put in front of its own while it trains.

Rules:

1. The table of `fit` has all that is overridden here, and all that is read elsewhere in this adapter.
2. A new process loads no checkpoint, whichever one the script names, and does not evaluate before the first step. It is
   given all of its state, and the newest folder may be one that a peer has half written.
3. All work outside the epochs runs as it does without taskd.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taskd.adaptors.trainers.hf.fit import unfit
from taskd.adaptors.trainers.hf.run import RESUMED, HfRun
from taskd.adaptors.training.runtime import Runtime, current
from taskd.errors import ConfigError

_log = logging.getLogger(__name__)


class ResilientTrainer:
    """The class in front of a trainer's own class."""

    _taskd_runtime: Runtime
    _taskd_options: dict[str, Any]
    _taskd_run: HfRun | None
    _taskd_left: bool
    _taskd_operations: tuple[Any, float] | None

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **named: Any) -> Any:
        """Train; in a new process without a checkpoint."""
        self._taskd_run, self._taskd_left = None, False
        resumes = None if self._taskd_runtime.link.joins else resume_from_checkpoint
        return super().train(resumes, *args, **named)  # type: ignore[misc]

    def _evaluate(self, *args: Any, **named: Any) -> Any:
        if self._taskd_run is None and self._taskd_runtime.link.joins:
            return {}
        return super()._evaluate(*args, **named)  # type: ignore[misc]

    def _run_epoch(self, **given: Any) -> None:
        epoch, run = super()._run_epoch, self._taskd_run  # type: ignore[misc]
        if run is None and not self._taskd_left:
            run = self._taskd_begin(given)
        if run is None or run.inside:
            epoch(**given)
            return
        run.train()
        control: Any = self.control  # type: ignore[attr-defined]
        self._taskd_stops, control.should_training_stop = control.should_training_stop, True

    def _taskd_begin(self, given: dict[str, Any]) -> HfRun | None:
        epoch, work = super()._run_epoch, super()._maybe_log_save_evaluate  # type: ignore[misc]
        try:
            run = HfRun(self, self._taskd_runtime, self._taskd_options, epoch, work, given)
        except ConfigError as error:
            _log.warning("%s. It trains as it is: at a fault all processes start anew", error)
            self._taskd_left = True
            return None
        self._taskd_run = run
        return run

    def training_step(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Do the trainer's own step; while the epochs run, as a micro-batch of the run."""
        train, run = super().training_step, self._taskd_run  # type: ignore[misc]
        if run is None or not run.inside:
            return train(model, inputs, *args, **named)
        operations = float(super().floating_point_ops(inputs))  # type: ignore[misc]
        self._taskd_operations = (inputs, operations)
        return run.micro_batch(inputs, operations, lambda: train(model, inputs, *args, **named))

    def floating_point_ops(self, inputs: Any) -> Any:
        """Return the trainer's own count; that of this micro-batch was computed already."""
        counted, self._taskd_operations = self._taskd_operations, None
        if counted is not None and counted[0] is inputs:
            return counted[1]
        return super().floating_point_ops(inputs)  # type: ignore[misc]

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: Any,
        trial: Any,
        epoch: Any,
        ignore_keys_for_eval: Any,
        start_time: Any,
        learning_rate: Any = None,
    ) -> None:
        arguments = {
            "tr_loss": tr_loss,
            "grad_norm": grad_norm,
            "model": model,
            "trial": trial,
            "epoch": epoch,
            "ignore_keys_for_eval": ignore_keys_for_eval,
            "start_time": start_time,
            "learning_rate": learning_rate,
        }
        run = self._taskd_run
        if run is None or not run.inside:
            super()._maybe_log_save_evaluate(**arguments)  # type: ignore[misc]
        else:
            run.work(arguments)

    def _load_rng_state(self, checkpoint: Any) -> None:
        if checkpoint != RESUMED:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]

    def _finalize_training(self, trial: Any, num_train_samples: Any, start_time: Any) -> Any:
        run = self._taskd_run
        if run is not None:
            self.control.should_training_stop = self._taskd_stops  # type: ignore[attr-defined]
            start_time = run.start_time
        return super()._finalize_training(trial, num_train_samples, start_time)  # type: ignore[misc]


@contextmanager
def recovered(trainer: Any, options: dict[str, Any]) -> Iterator[None]:
    """Recover `trainer.train()` in place in this context, if this process has an agent and all fits."""
    runtime = current()
    reason = "" if runtime is None else unfit(trainer)
    if reason:
        _log.warning("%s. It trains as it is: at a fault all processes start anew", reason)
    if runtime is None or reason:
        yield
        return
    kind = type(trainer)
    vars(trainer).update(
        _taskd_runtime=runtime, _taskd_options=options, _taskd_run=None, _taskd_left=False, _taskd_operations=None
    )
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    trainer.__class__ = type(kind.__name__, (ResilientTrainer, kind), body)
    try:
        yield
    finally:
        trainer.__class__ = kind
        for name in [name for name in vars(trainer) if name.startswith("_taskd_")]:
            delattr(trainer, name)
