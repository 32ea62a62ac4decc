"""The state of an engine, and of its module, as one rank has it."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from taskd.adaptors.trainers.deepspeed.seams import ATTRIBUTES, COUNTERS
from taskd.adaptors.trainers.deepspeed.stages import WholeStage
from taskd.adaptors.trainers.deepspeed.stepping import EngineStep
from taskd.adaptors.training.sharding.own_state import OwnState

_OF_TIMER = ("epoch_count", "micro_step_count", "global_step_count", "total_elapsed_time")


class ModuleState(OwnState):
    """The weights of a module that are not made from the masters. Under stage 0 all of them."""

    attributes = ATTRIBUTES

    def __init__(self, stage: WholeStage) -> None:
        self._stage = stage

    def state(self) -> Any:
        """Return tensors by name."""
        return self._stage.weights()

    def load(self, state: Any) -> None:
        """Load the weights into the module's own memory."""
        _fill(self._stage.weights(), state)


class EngineState(OwnState):
    """Masters, optimizer state, learning rates, schedule, loss scale and counters.

    Args:
        engine: that of DeepSpeed.
        stage: the state that its stage of ZeRO keeps.
        step: stands for its steps.
    """

    needs_all = True

    def __init__(self, engine: Any, stage: WholeStage, step: EngineStep) -> None:
        self._engine, self._stage, self._step = engine, stage, step
        self._basic: torch.optim.Optimizer = engine.basic_optimizer
        self._marked: dict[str, Any] = {}
        self.renews = (engine,)
        if stage.divided:
            self.rank, self.of = dist.get_rank(), dist.get_world_size()

    @property
    def due(self) -> bool:
        """True if the engine has stepped since the last commit."""
        return self._step.due

    def state(self) -> Any:
        """Return the state as a tree."""
        masters = self._stage.masters()
        scheduler, timer = self._engine.lr_scheduler, self._engine.tput_timer
        return {
            "masters": [master.detach() for master in masters] if self._stage.divided else [],
            "optimizer": [dict(self._basic.state.get(master, {})) for master in masters],
            "groups": [_options(group) for group in self._basic.param_groups],
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "counters": {name: getattr(self._engine, name) for name in COUNTERS},
            "scalers": [_plain(one) for one in self._scalers()],
            "timer": {name: getattr(timer, name) for name in _OF_TIMER},
        }

    def load(self, state: Any) -> None:
        """Load all of the state, and drop the remains of a step."""
        masters = self._stage.masters()
        with torch.no_grad():
            for master, given in zip(masters, state["masters"], strict=bool(self._stage.divided)):
                _copy(master.detach(), given)
            for master, values in zip(masters, state["optimizer"], strict=True):
                own = self._basic.state[master]
                for name in [name for name in own if name not in values]:
                    del own[name]
                for name, value in values.items():
                    own[name] = _kept(own.get(name), value)
        for group, options in zip(self._basic.param_groups, state["groups"], strict=True):
            group.update(options)
        if self._engine.lr_scheduler is not None:
            self._engine.lr_scheduler.load_state_dict(state["scheduler"])
        vars(self._engine).update(state["counters"])
        for scaler, values in zip(self._scalers(), state["scalers"], strict=True):
            vars(scaler).update(values)
        vars(self._engine.tput_timer).update(state["timer"])
        self._stage.refresh()
        self.mark()

    def mark(self) -> None:
        """Record the values that move before the basic optimizer does, to be put back later."""
        engine = self._engine
        self._step.committed = engine.global_steps
        self._marked = {
            "micro_steps": engine.micro_steps,
            "_unmanaged_backward_count": engine._unmanaged_backward_count,
            "_is_gradient_accumulation_boundary": engine._is_gradient_accumulation_boundary,
            "scalers": [_plain(one) for one in self._scalers()],
        }

    def drop_step(self) -> None:
        """Reset the engine to its state after a step, with the last commit's counters unless it has stepped since."""
        engine = self._engine
        engine._running_engine_backward = engine._running_engine_step = engine.inside_no_sync_ctxt = False
        engine._running_engine_backward_count = 0
        engine.tput_timer.started = False
        for timer in engine.timers.get_timers().values():
            if timer.started_:
                timer.reset()
        self._step.drop_step()
        self._stage.drop_step()
        if not self._step.due:
            counters = {**self._marked}
            for scaler, values in zip(self._scalers(), counters.pop("scalers"), strict=True):
                vars(scaler).update(values)
            vars(engine).update(counters)

    def complete(self) -> None:
        """Gather the weights."""
        self._stage.complete()

    def _scalers(self) -> Iterator[Any]:
        """Yield the objects that hold a loss scale, and whether the last step overflowed."""
        optimizer = self._engine.optimizer
        scaler = getattr(optimizer, "loss_scaler", None)
        if scaler is not None:
            yield scaler


def _plain(one: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(one).items() if isinstance(value, bool | int | float | None)}


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _fill(own: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> None:
    if own.keys() != given.keys():
        raise ValueError(f"the module has {sorted(own)}, and the state that came {sorted(given)}")
    with torch.no_grad():
        for name, tensor in own.items():
            _copy(tensor, given[name])


def _copy(own: torch.Tensor, given: torch.Tensor) -> None:
    if own.shape != given.shape:
        raise ValueError(f"a tensor of shape {tuple(given.shape)} came, expected {tuple(own.shape)}")
    if own.data_ptr() != given.data_ptr():
        own.copy_(given)


def _kept(own: Any, given: Any) -> Any:
    """Return the value to be used: this rank's own tensor if the given one fits into it, since others may hold it."""
    if isinstance(own, torch.Tensor) and isinstance(given, torch.Tensor) and own.shape == given.shape:
        _copy(own.detach(), given)
        return own
    return given
