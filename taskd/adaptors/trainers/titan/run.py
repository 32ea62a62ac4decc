"""One `train()` of torchtitan's trainer, inside one resilient function.

Rules:

1. torchtitan's own `train` is called again after each recovery. It goes on at the step and in the data that taskd has
   put back. It has loaded its checkpoint once, before.
2. A step is committed where torchtitan calls `should_log`, if optimizers and schedulers have stepped by then. If they
   have not, the step is committed behind `train_step`.
3. The work behind the commit is the log, a checkpoint, a validation. All ranks do it again if one of them may not have
   ended it. The loggers get a line once.
4. Everything that this puts into the trainer is taken out again at the end.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from taskd.adaptors.groups.collectives import leave_alone
from taskd.adaptors.groups.gathering import gather
from taskd.adaptors.trainers.logged_lines import LoggedLines
from taskd.adaptors.trainers.titan.own import TitanOwn, TitanShared
from taskd.adaptors.training.runtime import Runtime
from taskd.adaptors.training.script.behind import done_again
from taskd.adaptors.training.session import resilient
from taskd.adaptors.training.state import TrainState


class QuietLoader:
    """The trainer's loader, with an iterator whose making draws nothing more from the global generator."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        before = torch.default_generator.get_state()
        try:
            return iter(self._loader)
        finally:
            torch.default_generator.set_state(before)


class TitanRun:
    """The steps of one `train()`.

    Args:
        trainer: the one that trains.
        runtime: of this process.
        train: the trainer's own.
        options: of `TrainState`.
    """

    def __init__(self, trainer: Any, runtime: Runtime, train: Callable[[], None], options: dict[str, Any]) -> None:
        self._trainer = trainer
        self._train = inspect.unwrap(train)
        self._bound = (trainer,) if self._train is not train else ()
        self._came_back = self._joins = runtime.link.joins
        self._committed_at = -1
        self._should_log = trainer.metrics_processor.should_log
        self._lines = LoggedLines.of_rank(runtime.link)
        self._own, self._shared = TitanOwn(trainer), TitanShared()
        self._before, self._tokens = 0.0, 1.0
        self._options = options
        self._tools = importlib.import_module("torchtitan.train").dist_utils

    def train(self) -> None:
        """Load the checkpoint that the configuration names, and do all steps."""
        trainer = self._trainer
        if not self._joins:
            leave_alone(__package__, "torchtitan.components.checkpoint")  # a new process does not load it
            trainer.checkpointer.load(step=trainer.job_config.checkpoint.load_step)
        self._state = self._make_state()  # to load an optimizer's state, torch makes a step with it
        if not self._joins:
            self._state.step = self._own.start = trainer.step
        with self._placed():
            resilient(self._state)(self._steps)()

    def _make_state(self) -> TrainState:
        trainer = self._trainer
        parts: dict[str, Any] = {}
        for name, those in (
            ("model", trainer.model_parts),
            ("optimizer", trainer.optimizers),
            ("scheduler", trainer.lr_schedulers),
        ):
            parts |= {f"{name}_{number}": one for number, one in enumerate(those)}
        return TrainState(data={"own": self._own}, replicated={"logged_with": self._shared}, **parts, **self._options)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Put our functions in place of those that the trainer calls, until the end."""
        trainer, tools = self._trainer, self._tools
        metrics, clip = trainer.metrics_processor, tools.clip_grad_norm_

        def clipping(*args: Any, **options: Any) -> Any:
            norm = clip(*args, **options)
            if self._logs():
                self._shared.gradient_norm = norm.item()
            return norm

        puts: list[tuple[Any, str, Any]] = [
            (trainer.checkpointer, "load", lambda **_: False),
            (trainer, "batch_generator", self._batches(trainer.batch_generator)),
            (trainer, "train_step", self._step(trainer.train_step)),
            (trainer, "forward_backward_step", self._part(trainer.forward_backward_step)),
            (trainer, "loss_fn", self._loss(trainer.loss_fn)),
            (metrics, "should_log", self._ask),
            (metrics, "log", self._once(metrics.log)),
            (metrics, "log_validation", self._once(metrics.log_validation)),
        ]
        held = [(owner, name, vars(owner).get(name, self)) for owner, name, _ in puts]
        for owner, name, put in puts:
            setattr(owner, name, put)
        tools.clip_grad_norm_ = clipping
        try:
            yield
        finally:
            tools.clip_grad_norm_ = clip
            for owner, name, former in held:
                if former is self:
                    delattr(owner, name)
                else:
                    setattr(owner, name, former)

    @done_again
    def _steps(self) -> None:
        trainer, state = self._trainer, self._state
        trainer.step = state.step
        self._committed_at = -1
        came_back, self._came_back = self._came_back, True
        if came_back and state.step:
            self._lines.at(state.step)
            # A rank in the next step was released by all others, so it has ended this work. A rank between steps may
            # not have.
            if any(unsure for (unsure,) in gather([int(state._recovery.between_steps)])):
                self._follow(state.step)
        self._train(*self._bound)

    # Functions that the trainer calls.

    def _batches(self, generate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def batches(loader: Any) -> Any:
            return generate(QuietLoader(loader) if self._state.step > self._own.start else loader)

        return batches

    def _step(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        def train_step(batches: Any) -> None:
            self._own.begin()
            self._shared.rate = self._trainer.lr_schedulers.schedulers[0].get_last_lr()[0]
            step(batches)
            if self._committed_at != self._trainer.step:
                self._commit()

        return train_step

    def _part(self, part: Callable[..., Any]) -> Callable[..., Any]:
        ignored = importlib.import_module("torchtitan.components.loss").IGNORE_INDEX

        def forward_backward_step(*, labels: Any, global_valid_tokens: Any, **given: Any) -> Any:
            logs, own = self._logs(), self._own
            if logs:
                self._before, self._tokens = own.loss, float(global_valid_tokens)
                own.tokens, self._shared.tokens = own.tokens + int((labels != ignored).sum()), self._tokens
            loss = part(labels=labels, global_valid_tokens=global_valid_tokens, **given)
            if logs:
                own.loss = self._before + float(loss.detach())
            return loss

        return forward_backward_step

    def _loss(self, loss_of: Callable[..., Any]) -> Callable[..., Any]:
        def loss_fn(*args: Any, **options: Any) -> Any:
            loss = loss_of(*args, **options)
            if self._logs():  # before the backward pass: a peer may die in it
                self._own.loss = self._before + float(loss.detach() / self._tokens)
                self._state._recovery.record_ahead()
            return loss

        return loss_fn

    def _once(self, log: Callable[..., None]) -> Callable[..., None]:
        def once(*args: Any, **options: Any) -> None:
            if self._lines.takes():
                log(*args, **options)

        return once

    def _ask(self, step: int) -> bool:
        if all(self._state._recovery.steps.stepped):
            self._commit()
        return bool(self._should_log(step))

    # Internals.

    def _logs(self) -> bool:
        return bool(self._should_log(self._trainer.step))

    def _commit(self) -> None:
        self._committed_at = step = self._trainer.step
        self._lines.at(step)
        self._state.commit()

    def _follow(self, step: int) -> None:
        """Do the work behind the committed step."""
        trainer = self._trainer
        if self._should_log(step):
            self._log(step)
        trainer.checkpointer.save(step, last_step=step == trainer.job_config.training.steps)
        if trainer.job_config.validation.enable and trainer.validator.should_validate(step):
            trainer.validator.validate(trainer.model_parts, step)

    def _log(self, step: int) -> None:
        trainer, own, shared = self._trainer, self._own, self._shared
        tools = self._tools
        loss = torch.tensor(own.loss, device=trainer.device)
        average = highest = own.loss
        seen = trainer.ntokens_seen
        if trainer.parallel_dims.dp_cp_enabled:
            mesh = trainer.parallel_dims.get_optional_mesh("loss")
            average = tools.dist_sum(loss, mesh)
            highest = tools.dist_max(loss * shared.tokens / max(own.tokens, 1), mesh)
            seen = tools.dist_sum(torch.tensor(seen, dtype=torch.int64, device=trainer.device), mesh)
        trainer.metrics_processor.data_loading_times.append(0.0)
        trainer.metrics_processor.log(
            step, average, highest, shared.gradient_norm, extra_metrics={"n_tokens_seen": seen, "lr": shared.rate}
        )
